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
            if let Step::Found(rates) = self.choice.step(self.now_ns, pages, self.reserve_pages) {
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
        assert!(near(found.on_demand, on_demand) && near(found.pre_evict, pre_evict), "{found:?}");
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
    let mut load =
        Load::new(|scheme, at_ns| if at_ns < 30 * SECOND { first(scheme) } else { then(scheme) });
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
        let mut load =
            Load::new(
                |scheme, at_ns: u64| {
                    if (at_ns / half_ns).is_multiple_of(2) { one(scheme) } else { two(scheme) }
                },
            );
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
    let mut load = Load::new(|scheme, _| if scheme == Eviction::OnDemand { 9_000 } else { 60_000 });
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
