//! utility against targets computed by hand, and its invariants for any input.

use proptest::prelude::*;
use spillway_policy::{Policy, Sample, Standing, UNLIMITED, Utility};
use spillway_reuse::{BUCKETS, Curve, bucket};

const POLICY: Utility = Utility { miss_us: 1000, fairness_percent: 0, interval_us: 1_000_000 };

/// A curve whose gets all have one distance, which is also the number of live pages.
fn curve(distance_pages: u64, gets: f32) -> Curve {
    let mut curve = Curve { live_pages: distance_pages, ..Curve::EMPTY };
    curve.gets[bucket(distance_pages)] = gets;
    curve
}

/// A client with this many misses, puts and refused puts in an interval.
fn missing(curve: &Curve, misses: u64) -> Sample<'_> {
    Sample {
        puts: misses,
        puts_ever: misses,
        puts_refused: misses,
        misses,
        curve: Some(curve),
        ..Sample::default()
    }
}

fn targets(total_pages: u64, clients: &[Sample<'_>]) -> Vec<u64> {
    Policy::Utility(POLICY).targets(total_pages, clients)
}

/// The targets after this many equal intervals, with each client's state kept.
fn after(intervals: usize, total_pages: u64, clients: &[Sample<'_>]) -> Vec<u64> {
    under(POLICY, intervals, total_pages, clients, |_| {})
}

/// The same under another setting. `look` gets the targets of each interval.
fn under(
    policy: Utility,
    intervals: usize,
    total_pages: u64,
    clients: &[Sample<'_>],
    mut look: impl FnMut(&[u64]),
) -> Vec<u64> {
    let mut clients = clients.to_vec();
    for _ in 0..intervals {
        let outcomes = Policy::Utility(policy).outcomes(total_pages, &clients);
        let targets: Vec<_> = outcomes.iter().map(|outcome| outcome.target_pages).collect();
        look(&targets);
        for (client, outcome) in clients.iter_mut().zip(outcomes) {
            client.standing = outcome.standing;
            client.target_pages = Some(outcome.target_pages);
            client.used_pages = client.used_pages.min(outcome.target_pages);
        }
    }
    clients.iter().map(|client| client.target_pages.unwrap_or(0)).collect()
}

#[test]
fn clients_that_do_nothing_share_evenly() {
    let idle = Sample { used_pages: 1, ..Sample::default() };
    assert_eq!(targets(1000, &[]), []);
    assert_eq!(targets(1000, &[idle]), [1000]);
    assert_eq!(targets(1000, &[idle, idle]), [500, 500]);
    assert_eq!(targets(0, &[idle, idle]), [0, 0]);
    // By weight: 1000 in units of a quarter.
    assert_eq!(targets(1000, &[Sample { weight: 3, ..idle }, idle]), [750, 250]);
    // A cap leaves 900 to the other.
    assert_eq!(targets(1000, &[Sample { cap_pages: 100, ..idle }, idle]), [100, 900]);
    assert_eq!(targets(1000, &[Sample { cap_pages: 0, ..idle }]), [0]);
}

/// A client that holds and requests nothing may use free pages until the interval ends, but not another's floor.
#[test]
fn who_comes_back_need_not_wait() {
    let away = Sample::default();
    let there = Sample { used_pages: 900, ..Sample::default() };
    assert_eq!(targets(1000, &[away]), [1000]);
    assert_eq!(targets(1000, &[away, there])[0], 1000);
    assert_eq!(
        targets(1000, &[away, Sample { floor_pages: 300, ..there }])[0],
        1000,
        "a floor that is filled"
    );
    let low = Sample { floor_pages: 300, used_pages: 100, ..there };
    assert_eq!(targets(1000, &[away, low])[0], 700);
    let other = Sample { used_pages: 500, ..there };
    assert_eq!(targets(1000, &[away, low, other])[0], 200);
    assert_eq!(targets(1000, &[Sample { cap_pages: 100, ..away }, there])[0], 100);
    assert!(targets(1000, &[Sample { used_pages: 1, ..away }, there])[0] <= 100);
}

#[test]
fn floors_come_first() {
    let near = curve(1000, 900.0);
    let idle = Sample { floor_pages: 300, ..Sample::default() };
    // A client that could use all pages, beside an idle one with a floor.
    let targets = after(30, 1000, &[missing(&near, 900), idle]);
    assert!(targets[1] >= 300 && targets[0] >= 600, "{targets:?}");
    // Floors beyond the node are cut in proportion: 800 and 1200 of 2000 are 400 and 600 of 1000.
    let floor = |floor_pages| Sample { floor_pages, used_pages: 1, ..Sample::default() };
    assert_eq!(self::targets(1000, &[floor(800), floor(1200)]), [400, 600]);
    // A cap below the floor holds.
    let capped = Sample { cap_pages: 50, ..floor(300) };
    assert_eq!(self::targets(1000, &[capped, floor(0)]), [50, 950]);
}

#[test]
fn clients_that_do_not_fit_together_take_turns() {
    // Each needs 1000 pages, and without them waits for 98 % of its time. 1200 pages are enough for one.
    let near = curve(1000, 900.0);
    let clients = [missing(&near, 900); 2];
    let clients = clients.map(|client| Sample { used_pages: 600, ..client });
    let targets = after(3, 1200, &clients);
    let (most, least) = (targets[0].max(targets[1]), targets[0].min(targets[1]));
    assert!(most >= 1000 && least <= 200, "one has what it needs: {targets:?}");
}

/// The sum of each client's targets in 60 intervals, and the most by which one changed from one interval to the next.
fn over_a_minute(
    fairness_percent: u32,
    total_pages: u64,
    clients: &[Sample<'_>],
) -> (Vec<u64>, u64) {
    let (mut sums, mut last, mut step) = (vec![0; clients.len()], Vec::new(), 0);
    under(Utility { fairness_percent, ..POLICY }, 60, total_pages, clients, |targets| {
        sums.iter_mut().zip(targets).for_each(|(sum, target)| *sum += target);
        let steps = targets.iter().zip(&last).map(|(now, was): (&u64, &u64)| now.abs_diff(*was));
        step = steps.fold(step, u64::max);
        last = targets.to_vec();
    });
    (sums, step)
}

#[test]
fn the_fair_end_has_no_turns() {
    // As above: one of the two could run at full speed.
    let near = curve(1000, 900.0);
    let clients = [Sample { used_pages: 600, ..missing(&near, 900) }; 2];
    let (turns, _) = over_a_minute(0, 1200, &clients);
    assert!(turns[0].abs_diff(turns[1]) > 60 * 600, "{turns:?}");
    let (equal, step) = over_a_minute(100, 1200, &clients);
    assert_eq!(equal, [60 * 600, 60 * 600]);
    assert_eq!(step, 0);
    // With a half, each keeps a quarter of the node at least.
    let (half, _) = over_a_minute(50, 1200, &clients);
    assert!(half.iter().all(|&sum| sum >= 60 * 300) && half != equal, "{half:?}");
    // By weight.
    let (weighed, _) = over_a_minute(100, 1200, &[Sample { weight: 3, ..clients[0] }, clients[1]]);
    assert!(weighed[0].abs_diff(60 * 900) < 60 * 9, "{weighed:?}");
}

#[test]
fn a_fair_share_is_only_what_a_client_can_use() {
    // The small one has its 100 pages and a margin; what it can't use is shared evenly by the two large ones.
    let (small, large) = (curve(100, 500.0), curve(4000, 500.0));
    let large = Sample { used_pages: 450, ..missing(&large, 900) };
    let mut last = Vec::new();
    let policy = Utility { fairness_percent: 100, ..POLICY };
    under(policy, 60, 1000, &[missing(&small, 500), large, large], |it| last = it.to_vec());
    assert!((100..=160).contains(&last[0]), "{last:?}");
    assert!(last[1].abs_diff(last[2]) <= 1, "{last:?}");
    assert!(last.iter().sum::<u64>() > 990, "{last:?}");
    // A floor stays a floor, and a cap a cap.
    let (floor, cap) = (Sample { floor_pages: 700, ..large }, Sample { cap_pages: 50, ..large });
    under(policy, 60, 1000, &[floor, cap, large], |it| last = it.to_vec());
    assert!(last[0] >= 700 && last[1] == 50 && last[2] >= 240, "{last:?}");
}

#[test]
fn whoever_fits_into_its_share_has_it() {
    // 100 pages are enough for the first client; the second could use all.
    let (small, large) = (curve(100, 500.0), curve(4000, 500.0));
    let targets = after(60, 1000, &[missing(&small, 500), missing(&large, 900)]);
    assert!(targets[0] >= 100, "{targets:?}");
    assert!(targets[1] >= 700, "{targets:?}");
}

#[test]
fn weights_count() {
    // Only one can have the pages that it needs: the one with the larger weight has them.
    let near = curve(1000, 900.0);
    for heavy in 0..2 {
        let mut clients = [missing(&near, 900); 2].map(|it| Sample { used_pages: 600, ..it });
        clients[heavy].weight = 4;
        let targets = after(5, 1200, &clients);
        assert!(targets[heavy] > targets[1 - heavy], "{heavy}: {targets:?}");
    }
}

#[test]
fn idle_pages_go_to_whoever_asks() {
    let near = curve(600, 900.0);
    let hoarder = Sample { used_pages: 1000, puts_ever: 1000, ..Sample::default() };
    let targets = after(10, 1000, &[missing(&near, 900), hoarder]);
    assert!(targets[0] >= 600, "{targets:?}");
    // While no client requests pages, it keeps its own.
    assert_eq!(after(10, 1000, &[Sample::default(), hoarder])[1], 1000);
}

#[test]
fn a_former_get_counts_a_quarter() {
    // Both requested the same pages; one has stopped. The other now has what it needs.
    let near = curve(600, 300.0);
    let asks = Sample { used_pages: 300, ..missing(&near, 30) };
    let mut clients = [asks; 2];
    let mut targets = Vec::new();
    for interval in 0..930 {
        if interval == 900 {
            clients[0] = Sample { puts: 0, puts_refused: 0, misses: 0, ..clients[0] };
        }
        let outcomes = Policy::Utility(POLICY).outcomes(700, &clients);
        for (client, outcome) in clients.iter_mut().zip(&outcomes) {
            client.standing = outcome.standing;
            client.target_pages = Some(outcome.target_pages);
            let most = if client.puts > 0 { 600 } else { client.used_pages };
            client.used_pages = outcome.target_pages.min(most);
        }
        targets = outcomes.iter().map(|outcome| outcome.target_pages).collect();
    }
    assert!(targets[1] >= 600, "{targets:?}");
}

#[test]
fn nobody_gets_ahead_of_what_it_can_fill() {
    // The client could use 4000 pages but puts 10 and misses 900 in an interval, of which a fifth counts at first: it
    // gets these and an eighth of its share of 2000.
    let far = curve(4000, 900.0);
    let slow = Sample { puts: 10, used_pages: 50, ..missing(&far, 900) };
    let holder = Sample { used_pages: 3900, ..missing(&far, 900) };
    let targets = after(1, 4000, &[slow, holder]);
    assert!(targets[0] <= 50 + 910 / 5 + 250, "{targets:?}");
}

/// It puts nothing until it has room: a page from the disk goes to the store only if that has room for it.
#[test]
fn who_reads_its_pages_from_its_disk_can_come_back() {
    let far = curve(4000, 800.0);
    let on_disk = Sample { puts: 0, puts_refused: 0, used_pages: 0, ..missing(&far, 800) };
    let holder = Sample { used_pages: 9800, ..missing(&far, 100) };
    // Long enough to be owed its share.
    let targets = after(400, 9898, &[on_disk, holder]);
    assert!(targets[0] >= 1200, "{targets:?}");
}

#[test]
fn small_changes_are_not_sent() {
    let idle = Sample { used_pages: 1, ..Sample::default() };
    // 1000 / 256 are 3 pages.
    let was = |pages| Sample { target_pages: Some(pages), ..idle };
    assert_eq!(targets(1000, &[was(502), was(498)]), [502, 498]);
    assert_eq!(targets(1000, &[was(504), was(496)]), [500, 500]);
    assert_eq!(targets(1000, &[was(502), was(500)]), [500, 500], "beyond the node");
    assert_eq!(targets(1000, &[Sample { cap_pages: 501, ..was(502) }, was(498)])[0], 500);
}

prop_compose! {
    fn any_curve()(
        gets in prop::collection::vec(prop_oneof![Just(0.0_f32), 0.0..1e6_f32], BUCKETS),
        cold in 0.0..1e6_f32,
        live_pages in 0..1_000_000_u64,
    ) -> Curve {
        let mut curve = Curve { cold, live_pages, ..Curve::EMPTY };
        curve.gets.copy_from_slice(&gets);
        curve
    }
}

#[derive(Clone, Debug)]
struct Any {
    numbers: [u64; 6],
    cap_pages: u64,
    floor_pages: u64,
    weight: u32,
    curve: Curve,
}

prop_compose! {
    fn any_client()(
        numbers in prop::array::uniform6(prop_oneof![Just(0), 0..100_000_u64]),
        cap_pages in prop_oneof![Just(UNLIMITED), 0..200_000_u64],
        floor_pages in prop_oneof![4 => Just(0), 1 => 0..50_000_u64],
        weight in 1..10_u32,
        curve in any_curve(),
    ) -> Any {
        Any { numbers, cap_pages, floor_pages, weight, curve }
    }
}

impl Any {
    fn sample(&self, standing: Standing, target_pages: Option<u64>) -> Sample<'_> {
        let [puts, refused, hits, misses, used_pages, ever] = self.numbers;
        Sample {
            puts,
            puts_refused: refused.min(puts),
            puts_ever: ever + puts,
            hits,
            misses,
            used_pages,
            cap_pages: self.cap_pages,
            floor_pages: self.floor_pages,
            weight: self.weight,
            curve: Some(&self.curve),
            target_pages,
            standing,
        }
    }
}

proptest! {
    /// Over intervals of any clients: the sum of the targets is at most the node, each target is at most its cap and at
    /// least its floor, and no page is left that a client may have.
    #[test]
    fn bounds_hold(
        total_pages in 0..200_000_u64,
        fairness_percent in 0..=100_u32,
        intervals in prop::collection::vec(prop::collection::vec(any_client(), 3), 1..6),
    ) {
        let policy = Utility { fairness_percent, ..POLICY };
        let mut kept = [(Standing::default(), None); 3];
        for clients in &intervals {
            let samples: Vec<_> =
                clients.iter().zip(kept).map(|(it, (standing, target))| it.sample(standing, target)).collect();
            let outcomes = Policy::Utility(policy).outcomes(total_pages, &samples);
            let targets: Vec<u64> = outcomes.iter().map(|it| it.target_pages).collect();
            // Clients that hold and request nothing may have free pages in addition.
            let is_away: Vec<_> = samples.iter()
                .map(|it| it.used_pages == 0 && it.puts + it.hits + it.misses == 0).collect();
            let there = targets.iter().zip(&is_away).filter(|(_, is_away)| !**is_away);
            let sum: u64 = there.map(|(target, _)| target).sum();
            prop_assert!(sum <= total_pages, "{targets:?}");
            let floors: u64 = clients.iter().map(|it| it.floor_pages.min(it.cap_pages)).sum();
            for (client, &target) in clients.iter().zip(&targets) {
                prop_assert!(target <= client.cap_pages, "{targets:?}");
                if floors <= total_pages {
                    prop_assert!(target >= client.floor_pages.min(client.cap_pages), "{targets:?}");
                }
            }
            // A remainder of the division by weights may stay, and changes too small to be sent.
            let open: u64 = clients.iter().zip(&targets)
                .filter(|(it, target)| **target < it.cap_pages).map(|(it, _)| u64::from(it.weight)).sum();
            let all_there = !is_away.contains(&true);
            prop_assert!(!all_there || open == 0 || total_pages - sum <= open + 3 * (total_pages / 256), "{targets:?}");
            for (kept, outcome) in kept.iter_mut().zip(&outcomes) {
                *kept = (outcome.standing, Some(outcome.target_pages));
            }
        }
    }

    /// The order of clients does not matter, except for remainders.
    #[test]
    fn the_order_does_not_matter(
        total_pages in 1000..200_000_u64,
        clients in prop::collection::vec(any_client(), 2..6),
    ) {
        let forth: Vec<_> = clients.iter().map(|it| it.sample(Standing::default(), None)).collect();
        let mut back = forth.clone();
        back.reverse();
        let forth = targets(total_pages, &forth);
        let mut back = targets(total_pages, &back);
        back.reverse();
        for (a, b) in forth.iter().zip(&back) {
            prop_assert!(a.abs_diff(*b) <= 64, "{forth:?} {back:?}");
        }
    }
}

#[test]
fn a_small_client_on_a_large_node_gets_its_pages() {
    let (large, small) = (curve(4_000_000, 100_000.0), curve(900, 900.0));
    let total_pages = 2_000_000;
    // The first has had all pages for a long time. The second is new, and needs fewer than the least change of such a
    // node.
    let first = Sample {
        target_pages: Some(total_pages),
        used_pages: total_pages,
        ..missing(&large, 100_000)
    };
    let second = Sample { target_pages: Some(0), ..missing(&small, 900) };
    let targets = after(20, total_pages, &[first, second]);
    assert!(targets[1] >= 900, "{targets:?}");
}

#[test]
fn what_does_not_come_out_even_goes_too() {
    let heavy = Sample { weight: 1000, used_pages: 1, ..Sample::default() };
    let targets = targets(16_384, &[heavy; 17]);
    assert_eq!(targets.iter().sum::<u64>(), 16_384);
    assert!(targets.iter().all(|&target| target.abs_diff(16_384 / 17) <= 17), "{targets:?}");
}
