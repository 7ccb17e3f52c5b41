//! The transparent way of use: unmodified clients, whose coldest strings lie in the store.
//!
//! ```text
//!  a command arrives --> filter: may it meet a value in the store? --> ours of the same flags and keys
//!                                                                        |  decides when it runs, also in EXEC
//!                                                                        v
//!                                             values come back where they are needed; the server's own command runs
//!  before the server sleeps --> hand: cold strings go to the store while memory is above the low mark
//! ```
//!
//! Commands are renamed from the first value of the module's on, and while some client has a transaction open:
//! what was queued before the first value left must find it all the same.

mod filter;
mod hand;
mod moves;
mod native;
mod patterns;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::server::{Context, Level, before_sleep, log, register_filter};

pub use moves::send_away;

/// Lets unmodified clients use the store.
///
/// # Errors
/// In one line, why this server can't do it correctly.
pub fn start(context: &Context<'_>) -> Result<(), String> {
    refuse_narrow_users(context)?;
    native::register(context)?;
    if register_filter(context, filter::rename) && before_sleep(context, turn) {
        Ok(())
    } else {
        Err("transparent: the server has no filter of commands".to_owned())
    }
}

/// A user who may run commands by name only would be refused the module's names for them.
fn refuse_narrow_users(context: &Context<'_>) -> Result<(), String> {
    narrow_user(context).map_or(Ok(()), |user| {
        Err(format!(
            "transparent: user {user} has not +@all on plain keys, and would be refused commands that the module renames"
        ))
    })
}

/// Some user who has not all commands, or has rules for reading and writing apart.
fn narrow_user(context: &Context<'_>) -> Option<String> {
    let reply = context.call(c"ACL", &[b"LIST"])?;
    let rules = (0..).map_while(|at| reply.part(at).and_then(|part| part.bytes()));
    for rule in rules {
        let rule = String::from_utf8_lossy(rule);
        let mut words = rule.split_whitespace().skip(1);
        let name = words.next().unwrap_or_default().to_owned();
        let words: Vec<&str> = words.collect();
        let narrow =
            !words.contains(&"+@all") || words.iter().any(|word| word.starts_with(['%', '(']));
        if words.contains(&"on") && narrow {
            return Some(name);
        }
    }
    None
}

/// Before the server sleeps.
fn turn(context: &Context<'_>) {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if !LOOKED.swap(true, Ordering::Relaxed) {
        // A server that starts reads its users when its modules are loaded.
        if let Err(line) = refuse_narrow_users(context) {
            log(Level::Warning, &line);
        }
    }
    hand::turn(context);
}
