//! Chooses the eviction scheme by its cost: on-demand or pre-evict.
//!
//! Which scheme is faster depends on the processor and the load, by a factor of up to two. So both are tried in
//! turns while the program faults, and the one with more page-ins is kept. A trial takes a fraction of a
//! second; after a change there is none for ten seconds.
//!
//! [`Choice`] is a pure state machine: its input is the time and the count of pages, its output the
//! scheme.

use crate::batched_counters::{BatchedCounters, Count};
use crate::tree::Eviction;
use spillway_platform::lock::Lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Interval of the choice's steps, ns.
pub(crate) const STEP_NS: u64 = 2_000_000;

/// How long a turn is measured, ns.
const TURN_NS: u64 = 20_000_000;
/// A turn that takes this much longer does not count: the program did something else.
const LATE: u64 = 8;
/// Turns of a trial; half of them try the other scheme.
const TURNS: usize = 8;
/// Least rate of page-ins to start a trial, per second.
const RATE_MIN: u64 = 10_000;
/// Least number of page-ins for a significant turn.
const PAGES_MIN: u64 = 200;
/// How long each page may take at most that is waited for before a turn is measured, ns.
const PAGE_NS_MAX: u64 = 200_000;
/// How much faster the other scheme must be, per cent.
const BETTER_PERCENT: u64 = 105;
/// How much faster the best turn of a scheme may be than its worst under one load, per cent.
const SAME_LOAD_PERCENT: u64 = 150;
/// How long a new scheme is kept at least, and the longest time between two trials, ns.
const KEEP_NS: u64 = 10_000_000_000;
/// Time from the first trial to the second, ns. It doubles with each trial without a change.
const SECOND_NS: u64 = 1_000_000_000;
/// Least time between trials, as a multiple of a trial's duration.
const REST: u64 = 10;
/// Pause after a trial that the program interrupted, or in which its load changed, ns. It doubles with each one in
/// a row, up to `KEEP_NS`.
const AGAIN_NS: u64 = 500_000_000;

/// The result of a trial: pages per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    pub(crate) on_demand: u64,
    pub(crate) pre_evict: u64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing new.
    Goes,
    /// Try the other scheme.
    Tries,
    /// A trial is complete.
    Found(Rates),
}

/// The choice, and the state of the trial.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The scheme that is kept.
    kept: Eviction,
    /// The scheme in use now.
    now: Eviction,
    trial: Option<Trial>,
    /// Time and count at the start of the latest turn, or of the wait for a load.
    since: Mark,
    next_trial_ns: u64,
    /// The time until the next trial if this one changes nothing.
    pause_ns: u64,
    /// The same if this one is not completed.
    again_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at_ns: u64,
    pages: u64,
}

#[derive(Debug)]
struct Trial {
    /// Rates of the completed turns, pages per second.
    rates: [u64; TURNS],
    over: usize,
    began_ns: u64,
    /// Where the turn's measurement begins: before that, the program uses up what the other scheme
    /// left.
    measured: bool,
}

impl Mark {
    /// Pages per second since then.
    fn rate(self, now_ns: u64, pages: u64) -> u64 {
        let ns = now_ns.saturating_sub(self.at_ns).max(1);
        (u128::from(pages.saturating_sub(self.pages)) * 1_000_000_000 / u128::from(ns)) as u64
    }
}

impl Trial {
    /// Whether the turns of one scheme differ so much that the program did something else meanwhile.
    fn load_changed(&self) -> bool {
        (0..2).any(|scheme| {
            let rates = || self.rates[scheme..].iter().step_by(2);
            let (least, most) = (rates().min().unwrap_or(&0), rates().max().unwrap_or(&0));
            most * 100 > least * SAME_LOAD_PERCENT
        })
    }
}

impl Choice {
    /// Starts with this scheme.
    pub(crate) const fn new(scheme: Eviction) -> Self {
        let since = Mark { at_ns: 0, pages: 0 };
        Self {
            kept: scheme,
            now: scheme,
            trial: None,
            since,
            next_trial_ns: 0,
            pause_ns: SECOND_NS,
            again_ns: AGAIN_NS,
        }
    }

    /// The scheme in use now.
    pub(crate) fn scheme(&self) -> Eviction {
        self.now
    }

    /// The scheme outside trials.
    pub(crate) fn kept(&self) -> Eviction {
        self.kept
    }

    /// Makes a step: `pages` have come in so far, and `reserve_pages` may be free when pre-evict ends.
    pub(crate) fn step(&mut self, now_ns: u64, pages: u64, reserve_pages: u64) -> Step {
        let Some(trial) = &mut self.trial else { return self.wait(now_ns, pages) };
        let took_ns = now_ns.saturating_sub(self.since.at_ns);
        let most_ns = match trial.measured {
            true => LATE * TURN_NS,
            false => (LATE * TURN_NS).max(reserve_pages * PAGE_NS_MAX),
        };
        if took_ns > most_ns {
            return self.give_up(now_ns, pages);
        }
        if !trial.measured {
            if pages.saturating_sub(self.since.pages) >= reserve_pages {
                trial.measured = true;
                self.since = Mark { at_ns: now_ns, pages };
            }
            return Step::Goes;
        }
        if took_ns < TURN_NS {
            return Step::Goes;
        }
        if pages.saturating_sub(self.since.pages) < PAGES_MIN {
            return self.give_up(now_ns, pages);
        }
        trial.rates[trial.over] = self.since.rate(now_ns, pages);
        trial.over += 1;
        trial.measured = false;
        let over = trial.over;
        self.since = Mark { at_ns: now_ns, pages };
        if over == TURNS {
            return self.decide(now_ns);
        }
        self.now = if over % 2 == 0 { self.kept } else { other(self.kept) };
        Step::Tries
    }

    /// Waits until a trial is due and the program faults enough for one.
    fn wait(&mut self, now_ns: u64, pages: u64) -> Step {
        let took_ns = now_ns.saturating_sub(self.since.at_ns);
        if now_ns < self.next_trial_ns || took_ns < TURN_NS {
            return Step::Goes;
        }
        let dense = took_ns <= LATE * TURN_NS && self.since.rate(now_ns, pages) >= RATE_MIN;
        self.since = Mark { at_ns: now_ns, pages };
        if dense {
            // The first turn uses the present scheme.
            self.trial =
                Some(Trial { rates: [0; TURNS], over: 0, began_ns: now_ns, measured: true });
        }
        Step::Goes
    }

    fn give_up(&mut self, now_ns: u64, pages: u64) -> Step {
        self.trial = None;
        self.since = Mark { at_ns: now_ns, pages };
        self.next_trial_ns = now_ns + self.again_ns;
        self.again_ns = (2 * self.again_ns).min(KEEP_NS);
        let tried = self.now != self.kept;
        self.now = self.kept;
        if tried { Step::Tries } else { Step::Goes }
    }

    /// The other scheme must be better in total and in most pairs of turns, because the load may have changed
    /// meanwhile.
    fn decide(&mut self, now_ns: u64) -> Step {
        let Some(trial) = self.trial.take() else { return Step::Goes };
        let pairs = trial.rates.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let better = |(kept, other): (u64, u64)| other * 100 > kept * BETTER_PERCENT;
        let won = pairs.clone().filter(|&pair| better(pair)).count();
        let (kept, tried) = pairs.fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        let of = |sum: u64| sum / (TURNS / 2) as u64;
        let rates = match self.kept {
            Eviction::PreEvict => Rates { pre_evict: of(kept), on_demand: of(tried) },
            _ => Rates { on_demand: of(kept), pre_evict: of(tried) },
        };
        let wins = better((kept, tried)) && won * 4 > TURNS;
        if !wins && trial.load_changed() {
            self.now = self.kept;
            self.next_trial_ns = now_ns + self.again_ns;
            self.again_ns = (2 * self.again_ns).min(KEEP_NS);
            return Step::Found(rates);
        }
        if wins {
            self.kept = other(self.kept);
            self.pause_ns = KEEP_NS;
        }
        self.now = self.kept;
        self.again_ns = AGAIN_NS;
        let took_ns = now_ns.saturating_sub(trial.began_ns);
        self.next_trial_ns = now_ns + self.pause_ns.max(REST * took_ns);
        self.pause_ns = (2 * self.pause_ns).min(KEEP_NS);
        Step::Found(rates)
    }
}

/// The scheme of a process, and how it is chosen.
pub(crate) struct Scheme {
    /// The present [`Eviction`], as a number; never `Auto`.
    pub(crate) now: AtomicU32,
    pub(crate) choice: Lock<Choice>,
    /// When the next step is due.
    pub(crate) next_step_ns: AtomicU64,
}

impl Scheme {
    /// Starts with this scheme.
    pub(crate) const fn new(scheme: Eviction) -> Self {
        Self {
            now: AtomicU32::new(scheme as u32),
            choice: Lock::new(Choice::new(scheme)),
            next_step_ns: AtomicU64::new(0),
        }
    }

    /// Whether this scheme is in use now.
    pub(crate) fn is(&self, scheme: Eviction) -> bool {
        self.now.load(Ordering::Relaxed) == scheme as u32
    }
}

fn other(scheme: Eviction) -> Eviction {
    match scheme {
        Eviction::PreEvict => Eviction::OnDemand,
        _ => Eviction::PreEvict,
    }
}

/// Pages that have come in so far, for a fault or ahead of one.
pub(crate) fn pages_in(task_counters: &[BatchedCounters]) -> u64 {
    let count = |counters: &BatchedCounters| {
        counters.counted(Count::Fetches) + counters.counted(Count::Prefetches)
    };
    task_counters.iter().map(count).sum()
}

#[cfg(test)]
mod tests;
