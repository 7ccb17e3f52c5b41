//! Each policy against targets computed by hand.

use spillway_policy::{Percent, Policy, Sample, SmartAlloc, UNLIMITED};
use spillway_test_support::random::Random;

/// A client in the tables: (puts ever, puts refused in the interval, used pages, target).
type Row = (u64, u64, u64, Option<u64>);

fn sample((puts, puts_refused, used_pages, target_pages): Row) -> Sample<'static> {
    Sample { puts_refused, puts_ever: puts, used_pages, target_pages, ..Sample::default() }
}

fn check(policy: Policy, cases: &[(u64, &[Row], &[u64])]) {
    for (number, &(total_pages, clients, expected)) in cases.iter().enumerate() {
        let clients: Vec<_> = clients.iter().copied().map(sample).collect();
        let targets = policy.targets(total_pages, &clients);
        assert_eq!(targets, expected, "{} case {number}: {clients:?}", policy.name());
    }
}

const IDLE: Row = (0, 0, 0, None);
const BUSY: Row = (10, 0, 5, None);
const REFUSED: Row = (10, 10, 5, None);

#[test]
fn greedy_gives_everybody_everything() {
    check(
        Policy::Greedy,
        &[
            (1000, &[], &[]),
            (1000, &[IDLE], &[UNLIMITED]),
            (0, &[IDLE, REFUSED], &[UNLIMITED, UNLIMITED]),
        ],
    );
}

#[test]
fn static_alloc_gives_equal_shares_to_all() {
    check(
        Policy::StaticAlloc,
        &[
            (1000, &[], &[]),
            (1000, &[IDLE], &[1000]),
            (1000, &[IDLE, BUSY], &[500, 500]),
            // The remainder goes to the first clients.
            (1000, &[IDLE, BUSY, REFUSED], &[334, 333, 333]),
            (1001, &[IDLE, BUSY, REFUSED], &[334, 334, 333]),
            (2, &[IDLE, BUSY, REFUSED], &[1, 1, 0]),
            (0, &[IDLE, BUSY], &[0, 0]),
            // Former targets and used pages do not matter.
            (90, &[(1, 1, 80, Some(80)), (0, 0, 0, Some(10)), IDLE], &[30, 30, 30]),
            (u64::MAX, &[IDLE, IDLE], &[u64::MAX / 2 + 1, u64::MAX / 2]),
        ],
    );
}

#[test]
fn reconf_static_gives_equal_shares_to_those_who_put() {
    check(
        Policy::ReconfStatic,
        &[
            (1000, &[], &[]),
            // No client has put a page.
            (1000, &[IDLE], &[0]),
            (1000, &[IDLE, IDLE, IDLE], &[0, 0, 0]),
            (1000, &[BUSY, IDLE, IDLE], &[1000, 0, 0]),
            (1000, &[IDLE, REFUSED, BUSY], &[0, 500, 500]),
            (1000, &[BUSY, REFUSED, BUSY], &[334, 333, 333]),
            (1000, &[BUSY, IDLE, BUSY, BUSY], &[334, 0, 333, 333]),
            (0, &[BUSY, BUSY], &[0, 0]),
        ],
    );
    // One put ever is enough.
    let long_ago = Sample { puts_ever: 1, ..Sample::default() };
    assert_eq!(Policy::ReconfStatic.targets(10, &[long_ago, Sample::default()]), [10, 0]);
}

fn smart(percent: &str, threshold_pages: Option<u64>) -> Policy {
    let p = percent.parse().expect("a percentage");
    Policy::SmartAlloc(SmartAlloc { p, threshold_pages })
}

#[test]
fn smart_alloc_follows_refusals() {
    check(
        smart("2", None),
        &[
            (10_000, &[], &[]),
            // New clients begin with equal shares. With no refusal and more unused pages than the threshold: 2 % less.
            (10_000, &[IDLE], &[9800]),
            (10_000, &[IDLE, IDLE], &[4900, 4900]),
            // Refused: more by 2 % of 10,000.
            (10_000, &[(5, 1, 1000, Some(1000)), (0, 0, 900, Some(1000))], &[1200, 1000]),
            (10_000, &[(5, 5, 0, Some(0))], &[200]),
            // The threshold is max(200, 64): a client keeps 200 unused pages, not 201.
            (10_000, &[(0, 0, 800, Some(1000))], &[1000]),
            (10_000, &[(0, 0, 799, Some(1000))], &[980]),
            // A client above its target has no unused pages.
            (10_000, &[(7, 0, 5000, Some(1000))], &[1000]),
            // At a small node the threshold is 64 pages: 2 % of 1000 are 20.
            (1000, &[(0, 0, 36, Some(100))], &[100]),
            (1000, &[(0, 0, 35, Some(100))], &[98]),
            // All are refused, and the sum exceeds the node: 5200 each of 10,400 become 5000.
            (10_000, &[(9, 9, 5000, Some(5000)), (9, 9, 5000, Some(5000))], &[5000, 5000]),
            // 6200 + 4000 = 10,200: 6200 * 10,000 / 10,200 = 6078.4, 4000 * 10,000 / 10,200 = 3921.6.
            (10_000, &[(9, 9, 6000, Some(6000)), (9, 0, 4000, Some(4000))], &[6078, 3921]),
            // Greedy before: targets without a limit are cut to halves.
            (10_000, &[(9, 9, 1, Some(u64::MAX)), (9, 9, 1, Some(u64::MAX))], &[5000, 5000]),
            (0, &[(9, 9, 1, Some(10)), IDLE], &[0, 0]),
        ],
    );
}

#[test]
fn smart_alloc_takes_fractions_and_thresholds() {
    // 0.75 % of 262,144 pages (1 GiB) are 1966.08. First 89,347, 86,725.6 and 86,725.6: a sum of 262,797, so each
    // is cut to its 262,144 / 262,797.
    check(
        smart("0.75", None),
        &[
            (262_144, &[(3, 3, 87_381, Some(87_381)), BUSY, IDLE], &[89_124, 86_509, 86_509]),
            (262_144, &[(3, 1, 0, Some(0))], &[1966]),
            (262_144, &[(0, 0, 1000, Some(2966))], &[2966]),
            (262_144, &[(0, 0, 999, Some(2966))], &[2943]),
        ],
    );
    check(smart("0.25", None), &[(262_144, &[(3, 1, 0, Some(0))], &[655])]);
    check(
        smart("6", Some(0)),
        &[
            (1000, &[(0, 0, 99, Some(100))], &[94]),
            (1000, &[(0, 0, 100, Some(100))], &[100]),
            (1000, &[(1, 1, 99, Some(100))], &[160]),
        ],
    );
    check(
        smart("100", Some(0)),
        &[(1000, &[(0, 0, 0, Some(100)), (1, 1, 0, Some(0))], &[0, 1000])],
    );
}

#[test]
fn a_small_percentage_of_a_small_node_grows_too() {
    // 0.001 % of 10,000 pages are 0.1.
    check(smart("0.001", Some(0)), &[(10_000, &[(1, 1, 5, Some(5))], &[6])]);
    // A node without pages has none to give.
    check(smart("0.001", Some(0)), &[(0, &[(1, 1, 5, Some(5))], &[0])]);
}

#[test]
fn what_a_cap_keeps_from_one_is_for_the_others() {
    let capped = |row, cap_pages| Sample { cap_pages, ..sample(row) };
    let clients =
        [capped(BUSY, 100), capped(BUSY, UNLIMITED), capped(REFUSED, 350), capped(BUSY, 0)];
    assert_eq!(Policy::Greedy.targets(1000, &clients), [100, UNLIMITED, 350, 0]);
    // 1000 among four is 250, which settles 100 and 0. 900 among two is 450, which settles 350. 550 are left.
    assert_eq!(Policy::StaticAlloc.targets(1000, &clients), [100, 550, 350, 0]);
    assert_eq!(Policy::ReconfStatic.targets(1000, &clients), [100, 550, 350, 0]);
    let all_capped = [capped(BUSY, 10), capped(BUSY, 20)];
    assert_eq!(Policy::StaticAlloc.targets(1000, &all_capped), [10, 20]);
    // A cap of exactly the share, and a remainder.
    let exactly = [capped(BUSY, 33), capped(BUSY, UNLIMITED), capped(BUSY, 34)];
    assert_eq!(Policy::StaticAlloc.targets(100, &exactly), [33, 34, 33]);
    // Of two refused clients, one is at its cap: 300 and 5200 do not exceed the node.
    let refused =
        [capped((9, 9, 300, Some(300)), 300), capped((9, 9, 5000, Some(5000)), UNLIMITED)];
    assert_eq!(smart("2", None).targets(10_000, &refused), [300, 5200]);
}

#[test]
fn no_targets_are_beyond_the_node() {
    let mut random = Random::new(1);
    let mut next = |below: u64| random.below(below);
    for _ in 0..2000 {
        let total_pages = next(1 << 20);
        let count = next(20) as usize;
        let mut client = || {
            let row = (next(3), next(2), next(1 << 21), (next(2) == 1).then(|| next(1 << 21)));
            Sample { cap_pages: [next(1 << 20), UNLIMITED][next(2) as usize], ..sample(row) }
        };
        let clients: Vec<_> = (0..count).map(|_| client()).collect();
        for policy in [Policy::StaticAlloc, Policy::ReconfStatic, smart("4", None)] {
            let targets = policy.targets(total_pages, &clients);
            assert_eq!(targets.len(), count);
            assert!(targets.iter().sum::<u64>() <= total_pages, "{policy:?} {clients:?}");
            let capped = targets.iter().zip(&clients).all(|(&target, its)| target <= its.cap_pages);
            assert!(capped, "{policy:?} {clients:?}");
        }
    }
}

#[test]
fn percentages_are_read_as_they_are_shown() {
    for text in ["0.25", "0.75", "2", "6", "100", "0.0001", "99.9999", "12.5"] {
        assert_eq!(text.parse::<Percent>().expect(text).to_string(), text);
    }
    for text in [
        "",
        "0",
        "0.0",
        "-1",
        "+1",
        "100.1",
        "101",
        "1e3",
        "1.00001",
        "4294967297",
        ".5",
        "a",
        "1,5",
    ] {
        assert!(text.parse::<Percent>().is_err(), "{text}");
    }
}
