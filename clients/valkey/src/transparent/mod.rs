//! The transparent way of use: unmodified clients, whose coldest strings lie in the store.
//!
//! ```text
//!  a command arrives --> filter: may it meet a value in the store? --> ours of the same flags and keys
//!                                                                        |  decides when it runs, also in EXEC
//!                                                                        v
//!                                             values come back where they are needed; the server's own command runs
//!  before the server sleeps --> hand: cold strings go to the store from the low mark on, until a little below it
//! ```
//!
//! Commands are renamed from the first value of the module's on, and while some client has a transaction open:
//! what was queued before the first value left must find it all the same.

mod back;
mod filter;
mod hand;
mod moves;
mod native;
mod patterns;
mod pressure;
mod table;
mod users;
mod written;

use crate::server::{Context, Level, before_sleep, log, observe, register_filter};

pub use moves::send_away;

/// Lets unmodified clients use the store, to which strings go from a share of `maxmemory` on.
///
/// # Errors
/// In one line, why this server can't do it correctly.
pub fn start(context: &Context<'_>, low_percent: u8) -> Result<(), String> {
    pressure::start(low_percent);
    // A server that starts reads its users when its modules are loaded: these are looked at in the first turn.
    if let Some(line) = users::refused(context) {
        return Err(line);
    }
    users::start(context);
    native::register(context)?;
    if !register_filter(context, filter::rename) || !before_sleep(context, turn) {
        return Err("transparent: the server has no filter of commands".to_owned());
    }
    if observe(context, written::observe) {
        Ok(())
    } else {
        Err("transparent: the server does not tell what it loads".to_owned())
    }
}

/// Before the server sleeps.
fn turn(context: &Context<'_>) {
    if let Some(line) = users::look(context) {
        log(Level::Warning, &line);
    }
    written::turn(context);
    filter::look_at_transactions(context);
    hand::turn(context);
}
