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
mod tests {
    use super::*;

    const RESERVE_PAGES: u64 = 512;
    const SECOND: u64 = 1_000_000_000;

    /// A program that faults: how many pages come in a second under a scheme, at a time in ns.
    struct Load<F: Fn(Eviction, u64) -> u64> {
        choice: Choice,
        rate: F,
        now_ns: u64,
        /// Thousand-millionths of pages that have come in.
        pages: u128,
        reserve_pages: u64,
        changes_ns: Vec<u64>,
        found: Vec<(u64, Rates)>,
        tried_ns: u64,
    }

    impl<F: Fn(Eviction, u64) -> u64> Load<F> {
        fn new(rate: F) -> Self {
            let choice = Choice::new(Eviction::PreEvict);
            let (changes_ns, found) = (Vec::new(), Vec::new());
            Self {
                choice,
                rate,
                now_ns: SECOND,
                pages: 0,
                reserve_pages: RESERVE_PAGES,
                changes_ns,
                found,
                tried_ns: 0,
            }
        }

        /// Runs until a time; faults come all the while.
        fn run_until(&mut self, until_ns: u64) {
            while self.now_ns < until_ns {
                let rate = (self.rate)(self.choice.scheme(), self.now_ns);
                self.pages += u128::from(rate) * u128::from(STEP_NS);
                self.now_ns += STEP_NS;
                if self.choice.scheme() != self.choice.kept() {
                    self.tried_ns += STEP_NS;
                }
                let before = self.choice.kept();
                let pages = (self.pages / u128::from(SECOND)) as u64;
                if let Step::Found(rates) = self.choice.step(self.now_ns, pages, self.reserve_pages)
                {
                    self.found.push((self.now_ns, rates));
                }
                if self.choice.kept() != before {
                    self.changes_ns.push(self.now_ns);
                }
            }
        }
    }

    /// On demand this many pages a second, ahead of need that many.
    fn rates(on_demand: u64, pre_evict: u64) -> impl Fn(Eviction) -> u64 {
        move |scheme| if scheme == Eviction::OnDemand { on_demand } else { pre_evict }
    }

    #[test]
    fn whichever_scheme_is_faster_is_kept_soon() {
        for (on_demand, pre_evict, wanted) in [
            (100_000, 50_000, Eviction::OnDemand),
            (50_000, 100_000, Eviction::PreEvict),
            (20_000, 17_000, Eviction::OnDemand),
            (30_000, 28_900, Eviction::PreEvict),
        ] {
            let of = rates(on_demand, pre_evict);
            let mut load = Load::new(|scheme, _| of(scheme));
            load.run_until(2 * SECOND);
            assert_eq!(load.choice.kept(), wanted, "{on_demand} and {pre_evict} a second");
            let (_, found) = load.found[0];
            let near = |found: u64, rate: u64| found.abs_diff(rate) * 50 <= rate;
            assert!(
                near(found.on_demand, on_demand) && near(found.pre_evict, pre_evict),
                "{found:?}"
            );
            load.run_until(60 * SECOND);
            assert_eq!(load.choice.kept(), wanted);
            assert_eq!(load.changes_ns.len(), usize::from(wanted != Eviction::PreEvict));
        }
    }

    #[test]
    fn the_other_scheme_has_to_be_better_in_all_and_in_most_pairs() {
        for (rates, changes) in [
            ([100, 106, 100, 106, 100, 106, 100, 106], true),
            ([100, 105, 100, 105, 100, 105, 100, 105], false),
            ([100, 150, 100, 150, 100, 150, 100, 100], true),
            ([100, 150, 100, 150, 100, 100, 100, 100], false),
            ([100, 110, 100, 110, 100, 110, 100, 70], false),
        ] {
            let mut choice = Choice::new(Eviction::PreEvict);
            choice.trial = Some(Trial { rates, over: TURNS, began_ns: SECOND, measured: false });
            choice.decide(SECOND);
            assert_eq!(choice.kept() == Eviction::OnDemand, changes, "{rates:?}");
        }
    }

    #[test]
    fn pages_that_come_ahead_of_a_fault_count_and_fresh_ones_do_not() {
        let task_counters = [BatchedCounters::new(), BatchedCounters::new()];
        task_counters[0].count(Count::Fetches, 3);
        task_counters[0].count(Count::FirstTouches, 100);
        task_counters[1].count(Count::Fetches, 20);
        task_counters[1].count(Count::Prefetches, 500);
        assert_eq!(pages_in(&task_counters), 523);
    }

    #[test]
    fn when_the_load_changes_so_does_the_scheme() {
        let (first, then) = (rates(90_000, 60_000), rates(40_000, 60_000));
        let mut load = Load::new(
            |scheme, at_ns| if at_ns < 30 * SECOND { first(scheme) } else { then(scheme) },
        );
        load.run_until(30 * SECOND);
        assert_eq!(load.choice.kept(), Eviction::OnDemand);
        load.run_until(30 * SECOND + KEEP_NS + SECOND);
        assert_eq!(load.choice.kept(), Eviction::PreEvict);
    }

    #[test]
    fn what_was_decided_too_early_is_mended_within_seconds() {
        let (first, then) = (rates(50_000, 60_000), rates(80_000, 60_000));
        let start = SECOND + SECOND / 2;
        let mut load =
            Load::new(|scheme, at_ns| if at_ns < start { first(scheme) } else { then(scheme) });
        load.run_until(start);
        assert_eq!((load.found.len(), load.choice.kept()), (1, Eviction::PreEvict));
        load.run_until(start + 3 * SECOND_NS);
        assert_eq!(load.choice.kept(), Eviction::OnDemand);
    }

    #[test]
    fn a_load_that_changes_during_a_trial_is_tried_again_within_a_second() {
        // A program that has filled its memory in order reads it at random: seen with 150,000 and then 50,000.
        let start = SECOND + SECOND / 10;
        let then = rates(120_000, 55_000);
        let load = |scheme, at_ns| if at_ns < start { 150_000 } else { then(scheme) };
        let mut load = Load::new(load);
        load.run_until(SECOND + SECOND / 2);
        assert_eq!((load.found.len(), load.choice.kept()), (1, Eviction::PreEvict));
        load.run_until(2 * SECOND + SECOND / 10);
        assert_eq!(load.choice.kept(), Eviction::OnDemand);
    }

    #[test]
    fn a_load_that_changes_during_every_trial_is_tried_less_and_less() {
        let mut choice = Choice::new(Eviction::PreEvict);
        for again_ns in [1, 2, 4, 8, 16, 20, 20].map(|halves| halves * SECOND / 2) {
            let rates = [151, 100, 150, 100, 101, 100, 100, 100];
            choice.trial = Some(Trial { rates, over: TURNS, began_ns: SECOND, measured: false });
            choice.decide(SECOND);
            assert_eq!(choice.next_trial_ns, SECOND + again_ns);
        }
        let rates = [150, 100, 150, 149, 100, 100, 100, 100];
        choice.trial = Some(Trial { rates, over: TURNS, began_ns: SECOND, measured: false });
        choice.decide(SECOND);
        assert_eq!(choice.next_trial_ns, SECOND + SECOND_NS);
        assert_eq!(choice.again_ns, AGAIN_NS);
    }

    #[test]
    fn a_cost_that_oscillates_changes_no_mind_more_often_than_each_ten_seconds() {
        for period_ms in [3, 7, 19, 50, 333, 1000, 5_000, 11_000] {
            let half_ns = period_ms * 500_000;
            let (one, two) = (rates(90_000, 45_000), rates(45_000, 90_000));
            let mut load = Load::new(|scheme, at_ns: u64| {
                if (at_ns / half_ns).is_multiple_of(2) { one(scheme) } else { two(scheme) }
            });
            load.run_until(200 * SECOND);
            for pair in load.changes_ns.windows(2) {
                assert!(pair[1] - pair[0] >= KEEP_NS, "period {period_ms} ms: {pair:?}");
            }
        }
    }

    #[test]
    fn trials_take_little_of_the_time() {
        let of = rates(60_000, 80_000);
        let mut load = Load::new(|scheme, _| of(scheme));
        load.run_until(121 * SECOND);
        assert!(load.tried_ns < 120 * SECOND / 50, "{} ms", load.tried_ns / 1_000_000);
        assert!((8..=20).contains(&load.found.len()), "{} trials", load.found.len());
    }

    #[test]
    fn a_large_reserve_is_waited_for_and_what_is_too_slow_for_that_is_tried_rarely() {
        for (on_demand, pre_evict, wanted) in [
            (30_000, 11_000, Some(Eviction::OnDemand)),
            (10_500, 20_000, Some(Eviction::PreEvict)),
            (12_000, 12_000, Some(Eviction::PreEvict)),
            (2_000, 12_000, None),
        ] {
            let of = rates(on_demand, pre_evict);
            let mut load = Load::new(|scheme, _| of(scheme));
            load.reserve_pages = 2048;
            load.run_until(121 * SECOND);
            assert_eq!(load.choice.kept(), wanted.unwrap_or(Eviction::PreEvict));
            assert_eq!(!load.found.is_empty(), wanted.is_some(), "{on_demand} and {pre_evict}");
            let share = 120 * SECOND / load.tried_ns.max(1);
            assert!(share >= 14, "{on_demand} and {pre_evict}: one in {share} of the time");
        }
    }

    #[test]
    fn who_faults_rarely_is_left_alone() {
        let of = rates(9_000, 9_000);
        let mut load = Load::new(|scheme, _| of(scheme));
        load.run_until(30 * SECOND);
        assert_eq!((load.found.len(), load.tried_ns), (0, 0));
    }

    #[test]
    fn a_trial_that_the_program_breaks_off_says_nothing_and_is_made_again() {
        let of = rates(100_000, 50_000);
        let mut load = Load::new(|scheme, _| of(scheme));
        while load.choice.scheme() != Eviction::OnDemand {
            load.run_until(load.now_ns + STEP_NS);
        }
        // No fault, so nobody comes by.
        load.now_ns += SECOND;
        load.run_until(load.now_ns + STEP_NS);
        assert_eq!(load.choice.scheme(), Eviction::PreEvict, "back to what is kept");
        assert_eq!(load.found.len(), 0);
        let paused_ns = load.now_ns;
        load.run_until(paused_ns + AGAIN_NS);
        assert_eq!(load.tried_ns, STEP_NS, "not at once");
        load.run_until(paused_ns + AGAIN_NS + SECOND);
        assert_eq!(load.choice.kept(), Eviction::OnDemand);
    }

    #[test]
    fn a_turn_with_few_pages_ends_the_trial() {
        let mut load =
            Load::new(|scheme, _| if scheme == Eviction::OnDemand { 9_000 } else { 60_000 });
        load.run_until(20 * SECOND);
        assert_eq!(load.found.len(), 0);
        assert_eq!(load.choice.kept(), Eviction::PreEvict);
    }

    #[test]
    fn what_lies_free_from_before_is_used_up_before_a_turn_counts() {
        // On demand the first pages after a turn ahead of need find memory free.
        let mut choice = Choice::new(Eviction::PreEvict);
        let (mut pages, mut since) = (0u64, 0u64);
        let mut found = None;
        for step in 1..2_000u64 {
            let free = choice.scheme() == Eviction::OnDemand && pages - since < RESERVE_PAGES;
            let each = if choice.scheme() == Eviction::PreEvict {
                120
            } else if free {
                500
            } else {
                100
            };
            pages += each;
            let before = choice.scheme();
            if let Step::Found(rates) = choice.step(step * STEP_NS, pages, RESERVE_PAGES) {
                found = Some(rates);
                break;
            }
            if choice.scheme() != before {
                since = pages;
            }
        }
        assert_eq!(found, Some(Rates { on_demand: 50_000, pre_evict: 60_000 }));
        assert_eq!(choice.kept(), Eviction::PreEvict);
    }
}
