//! The hand that goes round over the keys and sends cold strings to the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::moves::send_away;
use super::pressure;
use crate::server::{
    Context, Key, Kind, OwnText, Usage, is_loading, is_paused, memory_used, modules_changed,
};
use crate::spill::spill;
use crate::value::Value;

/// Time that one turn takes below and above the high mark, but for the key that it is at.
const TURN: Duration = Duration::from_micros(200);
const TURN_HIGH: Duration = Duration::from_millis(2);
/// Most time that a command which arrives at the limit waits while strings leave, before the server evicts keys for it.
/// What would take longer by the rate of before is left to the next turn between commands.
const IN_COMMAND: Duration = Duration::from_millis(1);
/// Keys that one step looks at.
const STEP: &[u8] = b"32";
/// How cold a string is that leaves in the first round over all keys, the second, and so on: not used for so
/// many milliseconds, or of at most such a frequency.
const ROUNDS: [(i64, i64); 4] = [(60_000, 1), (10_000, 5), (1000, 20), (0, 255)];

struct Hand {
    database: i32,
    cursor: Vec<u8>,
    round: usize,
    /// The first round began in the midst of the keys: it goes on until all were looked at.
    is_midway: bool,
    /// How long a KiB takes on its way to the store, of late.
    us_per_kib: f32,
}

static HAND: Mutex<Hand> = Mutex::new(Hand::NEW);
/// Whether no other module may be in the midst of something when a command arrives.
static ALONE: AtomicBool = AtomicBool::new(false);

/// A turn, before the server sleeps.
pub fn turn(context: &Context<'_>) {
    if modules_changed() {
        ALONE.store(!context.has_other_modules(), Ordering::Relaxed);
    }
    let used = memory_used();
    let mut hand = HAND.lock().unwrap_or_else(PoisonError::into_inner);
    if used < pressure::low() {
        hand.begin_anew();
        return;
    }
    // A command that waits was looked at when it arrived.
    if is_paused() || !spill().is_connected() {
        return;
    }
    let time = if used < pressure::high() { TURN } else { TURN_HIGH };
    let until = Instant::now() + time;
    while Instant::now() < until && pressure::is_above_low() {
        if !hand.step(context, until, false) {
            break;
        }
    }
}

/// A command arrives while the server is near its limit, beyond which it would evict keys or refuse it. `context` is the module's own.
pub fn before_eviction(context: &Context<'_>) {
    let in_midst = !ALONE.load(Ordering::Relaxed) || context.is_within() || is_loading();
    if in_midst || is_paused() || !spill().is_connected() {
        return;
    }
    let Ok(mut hand) = HAND.try_lock() else { return };
    hand.round = ROUNDS.len() - 1;
    let until = Instant::now() + IN_COMMAND;
    while Instant::now() < until && pressure::is_near_limit() {
        if !hand.step(context, until, true) {
            break;
        }
    }
}

impl Hand {
    const NEW: Self =
        Self { database: 0, cursor: Vec::new(), round: 0, is_midway: false, us_per_kib: 1.0 };

    /// Begins with the coldest strings again, where the hand is.
    fn begin_anew(&mut self) {
        self.round = 0;
        self.is_midway = self.database != 0 || !self.cursor.is_empty();
    }

    /// The hand came past the last key.
    fn end_round(&mut self) {
        (self.database, self.cursor) = (0, Vec::new());
        if !std::mem::take(&mut self.is_midway) {
            self.round = (self.round + 1).min(ROUNDS.len() - 1);
        }
    }

    /// Looks at the next keys, until a time, which strings that leave exceed only if they may; whether there may be more.
    fn step(&mut self, context: &Context<'_>, until: Instant, strict: bool) -> bool {
        if !context.select(self.database) {
            let began = self.database == 0;
            self.end_round();
            return !began;
        }
        let cursor = if self.cursor.is_empty() { b"0" } else { &self.cursor[..] };
        let Some(reply) = context.call(c"SCAN", &[cursor, b"COUNT", STEP]) else { return false };
        let (Some(next), Some(keys)) = (reply.part(0).and_then(|part| part.bytes()), reply.part(1))
        else {
            return false;
        };
        for at in 0..keys.parts() {
            if let Some(name) = keys.part(at).and_then(|part| part.bytes()) {
                self.look_at(context, &OwnText::new(name), strict.then_some(until));
            }
            // The rest of them are looked at in the next round.
            if Instant::now() > until {
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

    /// Sends a string away if it is cold, and gone by a time if there is one.
    fn look_at(&mut self, context: &Context<'_>, name: &OwnText, by: Option<Instant>) {
        let start = Instant::now();
        let kib = {
            let key = Key::peek(context, name.text());
            let bytes = match key.kind::<Value>() {
                Kind::Plain(bytes) => bytes,
                Kind::Ours(value) => value.inline_bytes().map_or(0, <[u8]>::len),
                _ => 0,
            };
            if bytes == 0 || !self.is_cold(key.usage()) {
                return;
            }
            bytes as f32 / 1024.0
        };
        let wanted = Duration::from_secs_f32(kib * self.us_per_kib / 1e6);
        if by.is_some_and(|by| start + wanted > by) {
            // A rate that was taken in a bad moment must not keep everything here.
            self.us_per_kib *= 0.9;
            return;
        }
        if send_away(context, name.text()) && kib >= 1.0 {
            let took_us = start.elapsed().as_secs_f32() * 1e6;
            // What the machine did meanwhile is not the store's: one outlier counts for little.
            let sample = (took_us / kib).min(2.0 * self.us_per_kib);
            self.us_per_kib += (sample - self.us_per_kib) / 8.0;
        }
    }

    fn is_cold(&self, usage: Usage) -> bool {
        let (idle_ms, frequency) = ROUNDS[self.round];
        match usage {
            Usage::IdleMs(ms) => ms >= idle_ms,
            Usage::Frequency(found) => found <= frequency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coldest_leave_first_wherever_the_hand_begins() {
        let mut hand = Hand { cursor: vec![b'7'], round: 3, ..Hand::NEW };
        hand.begin_anew();
        let rounds = [0; 4].map(|_| {
            hand.end_round();
            hand.round
        });
        assert_eq!(rounds, [0, 1, 2, 3], "the first one lacks the keys before the hand");
        hand.begin_anew();
        hand.end_round();
        assert_eq!(hand.round, 1);
    }
}
