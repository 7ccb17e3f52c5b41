//! Transparent mode: unmodified clients, whose coldest strings lie in the store.
//!
//! ```text
//!  a command arrives --> filter: may it meet a value in the store? --> the module's, with the same flags and keys
//!                                                                        |  decides when it runs, also in EXEC
//!                                                                        v
//!                                             values come back where they are needed; the server's own command runs
//!  before the server sleeps --> hand: cold strings go to the store from the low mark on, until a little below it
//! ```
//!
//! Commands are renamed once the first value of the module exists, and while a client has a transaction open: a command
//! that was queued before the first value moved must still find it.

mod back;
mod filter;
mod hand;
mod many;
mod moves;
mod native;
mod patterns;
pub mod pressure;
mod table;
mod users;
mod written;

use crate::server::{Change, Context, Level, Text, before_sleep, log, observe, register_filter};

pub use moves::send_away;

/// Whether transparent mode is enabled.
pub fn is_on() -> bool {
    pressure::is_set()
}

/// The part of `maxmemory` that may be in use without strings moving to the store.
pub fn part_that_stays() -> f64 {
    if is_on() && !pressure::is_always() { pressure::enough().into() } else { 1.0 }
}

/// Enables transparent mode. Strings move above `low_percent` of `maxmemory`.
///
/// # Errors
/// A line that says why this server can't do it correctly.
pub fn start(context: &Context<'_>, low_percent: u8) -> Result<(), String> {
    pressure::start(low_percent);
    // A starting server reads its users after it has loaded its modules. The first turn checks those.
    if let Some(line) = users::refused(context) {
        return Err(line);
    }
    users::start(context);
    native::register(context)?;
    if !register_filter(context, filter::rename) || !before_sleep(context, turn) {
        return Err("transparent: the server has no filter of commands".to_owned());
    }
    if observe(context, on_change) {
        Ok(())
    } else {
        Err("transparent: the server does not tell what it loads".to_owned())
    }
}

fn on_change(context: &Context<'_>, change: Change, key: &Text<'_>) {
    match change {
        Change::Evicted => hand::after_eviction(context),
        Change::Loaded | Change::Written => written::note(context, change, key),
    }
}

/// A turn, before the server sleeps.
fn turn(context: &Context<'_>) {
    if let Some(line) = users::look(context) {
        log(Level::Warning, &line);
    }
    written::turn(context);
    filter::look_at_transactions(context);
    hand::turn(context);
}
