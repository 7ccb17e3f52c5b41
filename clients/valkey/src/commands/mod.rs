//! The module's commands.

mod read;
mod set;
mod set_options;
mod unspill;

use crate::server::{Context, register_command};

pub use read::reply;
pub use unspill::{Act, each_value};

/// The reply to contradictory or malformed options.
const SYNTAX: &str = "ERR syntax error";

/// Registers all commands.
///
/// # Errors
/// A line, when the server rejects a command.
pub fn register(context: &Context<'_>) -> Result<(), String> {
    register_command::<set::Set>(context)?;
    register_command::<read::Get>(context)?;
    register_command::<read::GetMany>(context)?;
    register_command::<read::Length>(context)?;
    register_command::<read::Statistics>(context)?;
    register_command::<unspill::Demote>(context)?;
    register_command::<unspill::Unspill>(context)
}
