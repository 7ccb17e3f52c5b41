//! Whole runs.

use spillway_manager::{Policy, SmartAlloc, Utility};
use spillway_replay::costs::Costs;
use spillway_replay::engine::{Who, run};
use spillway_replay::keys::Keys;
use spillway_replay::mixes::mixes;
use spillway_replay::report::Report;
use spillway_replay::scenario::{Prepared, Scenario, scenarios};
use spillway_replay::work::{Phase, Work};
use spillway_replay::workloads::workloads;

fn go(scenario: &Scenario, prepared: &Prepared, who: Who) -> Report {
    let Prepared { traces, futures, terms } = prepared;
    run(who, scenario.total_pages, scenario.costs, traces, futures, terms)
}

const POLICIES: [Policy; 4] = [
    Policy::Greedy,
    Policy::StaticAlloc,
    Policy::ReconfStatic,
    Policy::Utility(Utility { miss_us: 500, fairness_percent: 0, interval_us: 1_000_000 }),
];

/// A client with `pages` pages, and `local_pages` of its own memory.
fn service(name: &str, keys: Keys, pages: u32, touches: u32) -> Work {
    let phases = vec![
        Phase::Fill { start: 0, pages },
        Phase::Zipf { start: 0, pages, skew: 0.5, touches, writes: 30 },
    ];
    Work { name: name.into(), local_pages: 200, keys, think_ns: 20_000, phases }
}

fn scenario(total_pages: u64, works: Vec<Work>) -> Scenario {
    let (name, about) = ("test".into(), String::new());
    Scenario { name, about, total_pages, costs: Costs::with_disk(500), works }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let works = vec![
        service("a", Keys::Pages, 2000, 150_000),
        service("b", Keys::Slots, 1500, 150_000),
        service("c", Keys::Frontswap, 1500, 150_000),
    ];
    let scenario = scenario(2000, works);
    for who in POLICIES.map(Who::Policy).into_iter().chain([Who::Oracle]) {
        let [one, two] =
            [7, 7].map(|seed| format!("{:?}", go(&scenario, &scenario.prepare(seed), who)));
        assert_eq!(one, two);
        let other = format!("{:?}", go(&scenario, &scenario.prepare(8), who));
        assert_ne!(one, other, "and another seed another one");
    }
}

/// A run computed by hand: two pages in a memory of one, touched in turn three times, with no node memory.
#[test]
fn stalls_are_what_the_costs_say() {
    let phases = vec![Phase::Scan { start: 0, pages: 2, passes: 3, writes: 100 }];
    let work = Work { name: "a".into(), local_pages: 1, keys: Keys::Pages, think_ns: 1000, phases };
    let costs = Costs::with_disk(800);
    // 6 touches: all but the first put the previous page, and all but the first two take theirs.
    for (total_pages, stall_us) in [(0, 5 * (5 + 100) + 4 * 800), (2, 5 * 5 + 4 * 10)] {
        let scenario = Scenario { costs, ..scenario(total_pages, vec![work.clone()]) };
        let report = go(&scenario, &scenario.prepare(1), Who::Policy(Policy::Greedy));
        assert_eq!(report.clients[0].stall_ns, stall_us * 1000);
        assert_eq!(report.clients[0].compute_ns, 6000);
        assert_eq!(report.mean_slowdown(), 1.0 + stall_us as f64 / 6.0);
    }
}

#[test]
fn memory_for_all_is_no_slowdown_but_the_puts_and_hits() {
    let scenario = scenario(100_000, vec![service("a", Keys::Frontswap, 2000, 100_000)]);
    let prepared = scenario.prepare(1);
    // reconf-static refuses all puts until the end of the first interval.
    for policy in [POLICIES[0], POLICIES[1], POLICIES[3]] {
        let report = go(&scenario, &prepared, Who::Policy(policy));
        assert!(report.worst_slowdown() < 1.7, "{policy}: {}", report.worst_slowdown());
    }
}

/// Clients that do not fit together: utility lets them take turns, and all of them benefit.
#[test]
fn turns_are_better_than_thrashing_together() {
    let works = (0..3).map(|n| service(&format!("c{n}"), Keys::Pages, 3000, 600_000)).collect();
    let scenario = scenario(4500, works);
    let prepared = scenario.prepare(3);
    let [greedy, even, _, utility] =
        POLICIES.map(|policy| go(&scenario, &prepared, Who::Policy(policy)));
    assert!(utility.mean_slowdown() < 0.9 * even.mean_slowdown().min(greedy.mean_slowdown()));
    assert!(utility.worst_slowdown() < even.worst_slowdown().min(greedy.worst_slowdown()));
}

/// At its fair end utility serves equal clients equally, and moves little.
#[test]
fn the_fair_end_serves_equal_clients_equally() {
    let works = (0..3).map(|n| service(&format!("c{n}"), Keys::Pages, 3000, 600_000)).collect();
    let scenario = scenario(4500, works);
    let prepared = scenario.prepare(3);
    let fair = Utility { miss_us: 500, fairness_percent: 100, ..Utility::default() };
    let [turns, fair] = [POLICIES[3], Policy::Utility(fair)]
        .map(|policy| go(&scenario, &prepared, Who::Policy(policy)));
    assert!(fair.jain() > 0.999 && turns.jain() < fair.jain(), "{} {}", fair.jain(), turns.jain());
    assert!(fair.churn_pages < 450.0, "{}", fair.churn_pages);
}

/// The slowdown of a client under greedy, equal shares and utility, that needs what an idle one with such keys holds.
fn beside_a_hoarder(keys: Keys) -> [f64; 3] {
    let mut hoarder = service("hoarder", keys, 3000, 1000);
    hoarder.phases.push(Phase::Idle { ms: 240_000 });
    // Long beside the sixteen intervals in which most of the excess goes.
    let mut worker = service("worker", Keys::Pages, 2500, 3_200_000);
    worker.phases.insert(0, Phase::Idle { ms: 1000 });
    let scenario = scenario(2600, vec![hoarder, worker]);
    let prepared = scenario.prepare(1);
    let worker = |policy| go(&scenario, &prepared, Who::Policy(policy)).clients[1].slowdown;
    [POLICIES[0], POLICIES[1], POLICIES[3]].map(worker)
}

#[test]
fn a_hoarder_loses_its_pages_to_who_asks() {
    let [greedy, even, utility] = beside_a_hoarder(Keys::Slots);
    assert!(utility < 0.5 * even && utility < 0.5 * greedy, "{utility} {even} {greedy}");
}

/// The daemon takes nothing back from programs whose pages have no disk on the node.
#[test]
fn a_hoarder_without_a_disk_keeps_its_pages() {
    let [greedy, _, utility] = beside_a_hoarder(Keys::Pages);
    let [_, _, with_disk] = beside_a_hoarder(Keys::Slots);
    assert!(with_disk < 0.5 * utility, "{with_disk} {utility}");
    assert!(utility < 1.01 * greedy, "{utility} {greedy}");
}

#[test]
fn scenarios_have_names_of_their_own_and_sizes_in_bounds() {
    let all: Vec<_> = scenarios().into_iter().chain(workloads()).chain(mixes()).collect();
    assert!(all.len() >= 36);
    for (at, scenario) in all.iter().enumerate() {
        assert!(all[..at].iter().all(|other| other.name != scenario.name), "{}", scenario.name);
        assert!(!scenario.works.is_empty() && scenario.total_pages > 0, "{}", scenario.name);
    }
    let smart = Policy::SmartAlloc(SmartAlloc::default());
    assert!(!smart.wants_curves() && POLICIES[3].wants_curves());
}
