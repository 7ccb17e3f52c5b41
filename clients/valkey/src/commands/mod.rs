//! The module's commands.

mod read;
mod set;
mod set_options;
mod unspill;

use std::ffi::CStr;

use crate::server::{Context, Text, denied, register_command};
use crate::transparent;

pub use read::reply;
pub use unspill::{Act, each_value};

/// The reply to contradictory or malformed options.
const SYNTAX: &str = "ERR syntax error";

/// In transparent mode, whoever may not run the server's own command may not run the module's either. Users who were
/// set up before the module may have rules that deny the one, and do not know the other. The server itself checks the
/// keys.
///
/// # Errors
/// The error reply, when the user may not run it.
fn permit<'a, 'text: 'a>(
    context: &Context<'_>,
    native: &CStr,
    arguments: impl IntoIterator<Item = &'a Text<'text>>,
) -> Result<(), String> {
    if !transparent::is_on() || context.permits(&context.asker(), native, arguments) {
        return Ok(());
    }
    Err(denied(native, b""))
}

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
