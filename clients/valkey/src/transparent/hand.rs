//! The hand that goes round over the keys and sends cold strings to the store.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::filter::look_at_transactions;
use super::moves::send_away;
use crate::server::{Context, Key, OwnText, Usage, is_paused, memory_used};
use crate::spill::spill;

/// Strings leave while so much of `maxmemory` is used.
pub const LOW: f32 = 0.85;
/// From so much on the server gives more of its time to it.
const HIGH: f32 = 0.95;
/// Time that one turn takes below and above the high mark, but for the key that it is at.
const TURN: Duration = Duration::from_micros(200);
const TURN_HIGH: Duration = Duration::from_millis(2);
/// Keys that one step looks at.
const STEP: &[u8] = b"32";
/// How cold a string is that leaves in the first round over all keys, the second, and so on: not used for so
/// many milliseconds, or of at most such a frequency.
const ROUNDS: [(i64, i64); 4] = [(60_000, 1), (10_000, 5), (1000, 20), (0, 255)];

struct Hand {
    database: i32,
    cursor: Vec<u8>,
    round: usize,
}

static HAND: Mutex<Hand> = Mutex::new(Hand { database: 0, cursor: Vec::new(), round: 0 });

/// A turn, before the server sleeps.
pub fn turn(context: &Context<'_>) {
    look_at_transactions(context);
    let used = memory_used();
    let mut hand = HAND.lock().unwrap_or_else(PoisonError::into_inner);
    if used < LOW {
        hand.round = 0;
        return;
    }
    // A command that waits was looked at when it arrived.
    if is_paused() || !spill().is_connected() {
        return;
    }
    let time = if used < HIGH { TURN } else { TURN_HIGH };
    let start = Instant::now();
    while start.elapsed() < time && memory_used() >= LOW {
        if !hand.step(context, start + time) {
            break;
        }
    }
}

impl Hand {
    /// Looks at the next keys, until a time; whether there may be more.
    fn step(&mut self, context: &Context<'_>, until: Instant) -> bool {
        if !context.select(self.database) {
            let began = self.database == 0;
            (self.database, self.cursor) = (0, Vec::new());
            self.round = (self.round + 1).min(ROUNDS.len() - 1);
            return !began;
        }
        let cursor = if self.cursor.is_empty() { b"0" } else { &self.cursor[..] };
        let Some(reply) = context.call(c"SCAN", &[cursor, b"COUNT", STEP]) else { return false };
        let (Some(next), Some(keys)) = (reply.part(0).and_then(|part| part.bytes()), reply.part(1))
        else {
            return false;
        };
        for at in 0..keys.parts() {
            let Some(name) = keys.part(at).and_then(|part| part.bytes()) else { continue };
            let name = OwnText::new(name);
            if self.is_cold(Key::quiet(context, name.text()).usage()) {
                send_away(context, name.text());
            }
            if Instant::now() > until {
                // The rest of them are looked at in the next round.
                break;
            }
        }
        if next == b"0" {
            (self.database, self.cursor) = (self.database + 1, Vec::new());
        } else {
            self.cursor = next.to_vec();
        }
        true
    }

    fn is_cold(&self, usage: Usage) -> bool {
        let (idle_ms, frequency) = ROUNDS[self.round];
        match usage {
            Usage::IdleMs(ms) => ms >= idle_ms,
            Usage::Frequency(found) => found <= frequency,
        }
    }
}
