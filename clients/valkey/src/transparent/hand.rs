//! The clock hand: goes around the keys and moves cold strings to the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::moves::send_away;
use super::pressure;
use crate::server::{
    Context, Key, Kind, OwnText, Usage, is_loading, is_paused, memory_used, modules_changed,
};
use crate::spill::spill;
use crate::value::Value;

/// Time of one turn while memory use is below and above the high mark. A string that has begun to move is finished.
const TURN: Duration = Duration::from_micros(100);
const TURN_HIGH: Duration = Duration::from_millis(2);
/// Most time that a command near the limit waits while strings move, before the server evicts keys for it. Strings that
/// would take longer, at the rate so far, are left to the next turn between commands.
const IN_COMMAND: Duration = Duration::from_millis(1);
/// Keys in one step of SCAN.
const STEP: &[u8] = b"32";
/// Of the strings that a step finds, the coldest one in this many moves, and at least one. This samples, as the server
/// does when it chooses keys to evict. The last step of a round may find too few for a sample: one of them moves only
/// when no other has.
const COLDEST_PART: usize = 8;
/// A string this cold moves regardless of the others: not used for this many milliseconds, or of at most this
/// frequency.
const COLD: (i64, i64) = (60_000, 1);
/// When no string can move, the hand rests for this many times as long as the round took. The rest ends early after the
/// maximum below, or when this much more of `maxmemory` is in use.
const REST: u32 = 9;
const REST_MAX: Duration = Duration::from_secs(1);
const REST_GROWTH: f32 = 0.01;

struct Hand {
    database: i32,
    cursor: Vec<u8>,
    round: Round,
    rest: Option<Rest>,
    /// Whether it has begun at the low mark, and has not ended yet.
    at_work: bool,
    /// Recent time to move a KiB to the store, in microseconds.
    us_per_kib: f32,
}

/// One pass of the hand over all keys.
#[derive(Default)]
struct Round {
    /// Time that it has taken so far.
    took: Duration,
    has_moved: bool,
}

/// A pause in which another pass would find nothing.
struct Rest {
    until: Instant,
    /// The share of `maxmemory` in use when it began.
    used: f32,
}

impl Round {
    /// How many of the strings that a step finds move although they are not cold. In a command all may.
    const fn leaving(&self, found: usize, is_last: bool, in_command: bool) -> usize {
        if in_command {
            found
        } else if is_last && self.has_moved {
            found / COLDEST_PART
        } else {
            found.div_ceil(COLDEST_PART)
        }
    }
}

/// A string that can move.
struct Candidate<'a> {
    name: &'a [u8],
    bytes: usize,
    usage: Usage,
}

static HAND: Mutex<Hand> = Mutex::new(Hand::NEW);
/// Whether no other module can be in the middle of an operation when a command arrives.
static ALONE: AtomicBool = AtomicBool::new(false);

/// A turn, before the server sleeps.
pub fn turn(context: &Context<'_>) {
    if modules_changed() {
        ALONE.store(!context.has_other_modules(), Ordering::Relaxed);
    }
    let used = memory_used();
    let mut hand = HAND.lock().unwrap_or_else(PoisonError::into_inner);
    // A paused command was handled when it arrived.
    if !hand.begin_or_end(used, false) || is_paused() || !spill().is_connected() {
        return;
    }
    let time = if used < pressure::high() { TURN } else { TURN_HIGH };
    hand.go_on(context, time, false);
}

/// Moves strings when a command arrives while the server is near the limit beyond which it evicts keys or refuses
/// commands. `context` is the module's own.
pub fn before_eviction(context: &Context<'_>) {
    if let Some(mut hand) = in_command(context) {
        hand.go_on(context, IN_COMMAND, true);
    }
}

/// Moves strings after the server has evicted a key, which it does in a loop: so that it evicts no more keys than before
/// the limit was lowered, and so that strings take the room in the store that an evicted value leaves. A value there
/// took almost no memory of the server. It would evict one such key after another until it meets one of its own.
pub fn after_eviction(context: &Context<'_>) {
    if let Some(mut hand) = in_command(context) {
        if spill().unflushed() > 0 {
            hand.rest = None;
        }
        hand.go_on(context, IN_COMMAND, true);
    }
}

/// The hand, if it may move strings while a command waits.
fn in_command(context: &Context<'_>) -> Option<MutexGuard<'static, Hand>> {
    let in_midst = !ALONE.load(Ordering::Relaxed) || context.is_within() || is_loading();
    if in_midst || is_paused() || !spill().is_connected() {
        return None;
    }
    HAND.try_lock().ok()
}

impl Hand {
    const NEW: Self = Self {
        database: 0,
        cursor: Vec::new(),
        round: Round { took: Duration::ZERO, has_moved: false },
        rest: None,
        at_work: false,
        us_per_kib: 1.0,
    };

    /// Begins or ends work, by the share of `maxmemory` in use. Returns whether strings must move now.
    fn begin_or_end(&mut self, used: f32, in_command: bool) -> bool {
        self.at_work = used >= pressure::low() || self.at_work && used >= pressure::enough();
        if in_command { pressure::is_near_limit(used) } else { self.at_work }
    }

    /// Moves strings for at most `time`, while needed. In a command any string may move, except one that would exceed
    /// the time.
    fn go_on(&mut self, context: &Context<'_>, time: Duration, in_command: bool) {
        let start = Instant::now();
        let until = start + time;
        let mut now = start;
        while now < until {
            let used = memory_used();
            if !self.begin_or_end(used, in_command) || self.rests(now, used) {
                break;
            }
            let goes_on = self.step(context, until, in_command);
            let then = Instant::now();
            self.round.took += then - now;
            now = then;
            if !goes_on {
                self.end_round(now, memory_used());
            }
        }
    }

    /// Whether the last pass found nothing to move, and its rest is not over.
    fn rests(&mut self, now: Instant, used: f32) -> bool {
        let goes_on = |rest: &Rest| now < rest.until && used < rest.used + REST_GROWTH;
        self.rest = self.rest.take().filter(goes_on);
        self.rest.is_some()
    }

    /// Handles the end of a pass over all keys.
    fn end_round(&mut self, now: Instant, used: f32) {
        (self.database, self.cursor) = (0, Vec::new());
        let round = std::mem::take(&mut self.round);
        if !round.has_moved {
            // Between the two marks there is nothing left to do.
            self.at_work = false;
            self.rest = Some(Rest { until: now + (round.took * REST).min(REST_MAX), used });
        }
    }

    /// Handles the next keys, until a time. Returns false when there are no more.
    fn step(&mut self, context: &Context<'_>, until: Instant, in_command: bool) -> bool {
        if !context.select(self.database) {
            return false;
        }
        let cursor = if self.cursor.is_empty() { b"0" } else { &self.cursor[..] };
        let Some(reply) = context.call(c"SCAN", &[cursor, b"COUNT", STEP]) else { return false };
        let (Some(next), Some(keys)) = (reply.part(0).and_then(|part| part.bytes()), reply.part(1))
        else {
            return false;
        };
        let names = (0..keys.parts()).filter_map(|at| keys.part(at).and_then(|part| part.bytes()));
        let found: Vec<_> = names.filter_map(|name| candidate(context, name)).collect();
        let count = self.round.leaving(found.len(), next == b"0", in_command);
        for string in coldest(found, count) {
            self.send(context, &string, in_command.then_some(until));
            // The next pass handles the rest.
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

    /// Moves a string. With a deadline `by`, only if it is expected to finish by then.
    fn send(&mut self, context: &Context<'_>, string: &Candidate<'_>, by: Option<Instant>) {
        let start = Instant::now();
        let kib = string.bytes as f32 / 1024.0;
        if by.is_some_and(|by| !self.fits(kib, by.saturating_duration_since(start))) {
            // It can move between commands.
            self.round.has_moved = true;
            return;
        }
        if send_away(context, OwnText::new(string.name).text()) {
            self.round.has_moved = true;
            self.learn(kib, start.elapsed());
        }
    }

    /// Whether a string of this size is expected to move in this time. If not, lowers the estimate, so that a rate
    /// measured at a bad moment does not block everything.
    fn fits(&mut self, kib: f32, left: Duration) -> bool {
        let fits = Duration::from_secs_f32(kib * self.us_per_kib / 1e6) <= left;
        if !fits {
            self.us_per_kib *= 0.9;
        }
        fits
    }

    /// Corrects the estimate by the time that a string took.
    fn learn(&mut self, kib: f32, took: Duration) {
        if kib >= 1.0 {
            // Limit the sample: the machine's other work may have delayed it.
            let sample = (took.as_secs_f32() * 1e6 / kib).min(2.0 * self.us_per_kib);
            self.us_per_kib += (sample - self.us_per_kib) / 8.0;
        }
    }
}

/// The string of a key, if it can move.
fn candidate<'a>(context: &Context<'_>, name: &'a [u8]) -> Option<Candidate<'a>> {
    let text = OwnText::new(name);
    let key = Key::peek(context, text.text());
    let bytes = match key.kind::<Value>() {
        Kind::Plain(bytes) if Value::may_spill(bytes as u64) => bytes,
        Kind::Ours(value) => value.inline_bytes().map_or(0, <[u8]>::len),
        _ => 0,
    };
    (bytes > 0).then(|| Candidate { name, bytes, usage: key.usage() })
}

/// The strings to move, the coldest first: `count`, or all that are cold if they are more.
fn coldest(mut found: Vec<Candidate<'_>>, count: usize) -> Vec<Candidate<'_>> {
    found.sort_by_key(|string| warmth(string.usage));
    let cold = found.iter().take_while(|string| is_cold(string.usage)).count();
    found.truncate(count.max(cold));
    found
}

const fn warmth(usage: Usage) -> i64 {
    match usage {
        Usage::IdleMs(ms) => -ms,
        Usage::Frequency(found) => found,
    }
}

const fn is_cold(usage: Usage) -> bool {
    match usage {
        Usage::IdleMs(ms) => ms >= COLD.0,
        Usage::Frequency(found) => found <= COLD.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(usages: impl IntoIterator<Item = Usage>, count: usize) -> Vec<i64> {
        let found = usages.into_iter().map(|usage| Candidate { name: b"", bytes: 1, usage });
        let chosen = coldest(found.collect(), count);
        chosen
            .into_iter()
            .map(|string| match string.usage {
                Usage::IdleMs(number) | Usage::Frequency(number) => number,
            })
            .collect()
    }

    #[test]
    fn a_part_of_what_was_found_leaves_and_one_of_few_unless_others_did() {
        let [none, some] = [false, true].map(|has_moved| Round { has_moved, ..Round::default() });
        let leaving = |round: &Round, is_last, in_command| {
            [0, 1, 7, 8, 9, 32].map(|found| round.leaving(found, is_last, in_command))
        };
        for (round, is_last) in [(&none, false), (&none, true), (&some, false)] {
            assert_eq!(leaving(round, is_last, false), [0, 1, 1, 1, 2, 4]);
        }
        assert_eq!(leaving(&some, true, false), [0, 0, 0, 1, 1, 4]);
        for (round, is_last) in [(&none, false), (&some, true)] {
            assert_eq!(leaving(round, is_last, true), [0, 1, 7, 8, 9, 32], "in a command");
        }
    }

    #[test]
    fn the_coldest_leave_first_and_whatever_is_cold() {
        assert_eq!(chosen([5, 900, 7].map(Usage::IdleMs), 1), [900]);
        assert_eq!(chosen([200, 30, 255].map(Usage::Frequency), 1), [30]);
        assert_eq!(chosen((0..32).map(Usage::IdleMs), 4), [31, 30, 29, 28]);
        assert_eq!(chosen((2..34).map(Usage::Frequency), 4), [2, 3, 4, 5]);
        assert_eq!(chosen([5, 900, 7].map(Usage::IdleMs), 3), [900, 7, 5]);
        assert!(chosen([], 0).is_empty());
        let idle = [60_000, 59_999, 90_000, 70_000, 1, 2].map(Usage::IdleMs);
        assert_eq!(chosen(idle, 1), [90_000, 70_000, 60_000]);
        assert_eq!(chosen([0, 1, 2, 1, 9].map(Usage::Frequency), 1), [0, 1, 1]);
    }

    #[test]
    fn strings_that_move_in_a_command_fit_in_its_time() {
        let mut hand = Hand { us_per_kib: 10.0, ..Hand::NEW };
        let (mut left, mut moved) = (IN_COMMAND, 0);
        while hand.fits(4.0, left) {
            left -= Duration::from_micros(40);
            moved += 1;
        }
        assert_eq!((moved, left), (25, Duration::ZERO));
        assert!(!hand.fits(200.0, IN_COMMAND), "it takes 2 ms");
        assert!(!hand.fits(0.1, Duration::ZERO), "nothing is left");
    }

    #[test]
    fn the_time_of_a_string_is_expected_by_the_rate_so_far() {
        let mut hand = Hand::NEW;
        assert!(hand.fits(64.0, IN_COMMAND));
        hand.learn(64.0, Duration::from_secs(1));
        assert!(hand.fits(64.0, IN_COMMAND), "one delay says little");
        (0..100).for_each(|_| hand.learn(64.0, Duration::from_millis(2)));
        assert!(!hand.fits(64.0, IN_COMMAND), "it takes 2 ms");
        (0..100).for_each(|_| hand.learn(0.5, Duration::ZERO));
        assert!(!hand.fits(64.0, IN_COMMAND), "short strings tell nothing of long ones");
        // A slow store delays few commands, and a rate that was slow once is tried again.
        let refused = (0..100).take_while(|_| !hand.fits(64.0, IN_COMMAND)).count();
        assert!((1..20).contains(&refused), "refused {refused} times");
    }

    #[test]
    fn the_hand_begins_at_the_low_mark_and_ends_a_little_below_it() {
        let mut hand = Hand::NEW;
        let (low, enough) = (pressure::low(), pressure::enough());
        assert!(enough < low);
        let between = f32::midpoint(low, enough);
        let needed = [between, low, between, enough, enough - 0.001, between, low, 0.0]
            .map(|used| hand.begin_or_end(used, false));
        assert_eq!(needed, [false, true, true, true, false, false, true, false]);
        // In a command only near the limit.
        assert!(!hand.begin_or_end(low, true));
        assert!(hand.begin_or_end(0.99, true));
    }

    #[test]
    fn after_a_round_without_a_string_that_can_leave_the_hand_rests() {
        let mut hand = Hand::NEW;
        let start = Instant::now();
        let took = Duration::from_millis(20);
        hand.round = Round { took, has_moved: true };
        hand.end_round(start, 0.9);
        assert!(!hand.rests(start, 0.9));
        hand.at_work = true;
        hand.round = Round { took, has_moved: false };
        hand.end_round(start, 0.9);
        assert!(!hand.at_work, "it would never end a little below the low mark");
        assert!(hand.rests(start + took * (REST - 1), 0.9));
        assert!(!hand.rests(start + took * REST, 0.9));
        assert!(!hand.rests(start, 0.9), "it went on");
    }

    #[test]
    fn a_rest_is_short_and_ends_when_more_memory_is_used() {
        let mut hand = Hand::NEW;
        let start = Instant::now();
        let nothing = || Round { took: Duration::from_secs(20), has_moved: false };
        hand.round = nothing();
        hand.end_round(start, 0.9);
        assert!(hand.rests(start + REST_MAX / 2, 0.905));
        assert!(!hand.rests(start + REST_MAX / 2, 0.915));
        hand.round = nothing();
        hand.end_round(start, 0.9);
        assert!(!hand.rests(start + REST_MAX, 0.9));
    }
}
