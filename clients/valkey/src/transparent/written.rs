//! Strings that were just written, and move as soon as their command has finished with them: while the server loads
//! more than it has room for, and always with `spill-from 0`.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::moves::send_away;
use super::pressure;
use crate::server::{Change, Context, OwnText, Text, is_loading, is_paused};

/// Time for moving them between two rounds of commands. A string that has begun to move is finished.
const TURN: Duration = Duration::from_millis(2);

/// A key and its database.
type Name = (i32, OwnText);

struct Names(VecDeque<Name>);
// SAFETY: the strings are the module's, and only the server's main thread makes, uses and frees them.
unsafe impl Send for Names {}

static WRITTEN: Mutex<Names> = Mutex::new(Names(VecDeque::new()));

fn names() -> std::sync::MutexGuard<'static, Names> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a string that a command writes, or that a dump contains.
pub fn note(context: &Context<'_>, change: Change, key: &Text<'_>) {
    let loading = is_loading();
    if !(pressure::is_always() || loading && pressure::is_above_low()) {
        return;
    }
    let name = OwnText::new(key.bytes());
    if change == Change::Loaded {
        send_away(context, name.text());
        return;
    }
    let database = context.database();
    if loading {
        // Nothing else runs between two commands of a file, so all commands but this one have finished.
        let same = |other: &Name| other.0 == database && other.1.text().bytes() == key.bytes();
        let done: Vec<Name> = names().0.drain(..).filter(|other| !same(other)).collect();
        send(context, done);
        context.select(database);
    }
    names().0.push_back((database, name));
}

/// Notes a value that came back for a command. It moves again after the command if no string may stay.
pub fn came_back(context: &Context<'_>, key: &Text<'_>) {
    if pressure::is_always() {
        names().0.push_back((context.database(), OwnText::new(key.bytes())));
    }
}

/// Moves the strings that were written, between commands.
pub fn turn(context: &Context<'_>) {
    let until = Instant::now() + TURN;
    while !is_paused() {
        let Some(name) = names().0.pop_front() else { return };
        send(context, vec![name]);
        if Instant::now() > until {
            return;
        }
    }
}

fn send(context: &Context<'_>, names: Vec<Name>) {
    for (database, name) in names {
        if context.select(database) {
            send_away(context, name.text());
        }
    }
}
