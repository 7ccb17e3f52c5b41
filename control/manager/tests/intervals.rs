//! What the manager makes of samples.

use spillway_manager::{
    Change, Curve, ManagedClient, Manager, Policy, SmartAlloc, UNLIMITED, Utility,
};
use spillway_types::{ClientId, Statistics};

const TOTAL: u64 = 10_000;

/// A store as the manager sees it.
struct Node {
    manager: Manager,
    clients: Vec<ManagedClient>,
}

impl Node {
    fn new(policy: Policy) -> Self {
        Self { manager: Manager::new(policy), clients: Vec::new() }
    }

    fn add(&mut self, id: u64) -> &mut Statistics {
        let target_pages = self.manager.first_target_pages(TOTAL);
        let statistics = Statistics { target_pages, ..Statistics::default() };
        self.clients.push(ManagedClient::new(ClientId(id), statistics));
        self.of(id)
    }

    fn of(&mut self, id: u64) -> &mut Statistics {
        &mut self.clients.iter_mut().find(|client| client.id.0 == id).expect("a client").statistics
    }

    fn puts(&mut self, id: u64, stored: u64, refused: u64) {
        let statistics = self.of(id);
        statistics.puts += stored + refused;
        statistics.used_pages += stored;
        statistics.puts_refused_at_target += refused;
    }

    /// The targets after an interval, and how many were sent.
    fn interval(&mut self) -> (Vec<u64>, usize) {
        let changes = self.manager.interval(TOTAL, &self.clients);
        for Change { id, target_pages } in &changes {
            self.of(id.0).target_pages = *target_pages;
        }
        (self.clients.iter().map(|client| client.statistics.target_pages).collect(), changes.len())
    }
}

fn smart() -> Policy {
    Policy::SmartAlloc(SmartAlloc::default())
}

#[test]
fn greedy_leaves_everybody_what_the_operator_says() {
    let mut node = Node::new(Policy::Greedy);
    assert_eq!(node.interval(), (vec![], 0));
    node.add(1);
    node.add(2);
    node.clients[1].cap_pages = 70;
    assert_eq!(node.interval(), (vec![UNLIMITED, 70], 1));
    assert_eq!(node.interval(), (vec![UNLIMITED, 70], 0));
    node.clients[1].cap_pages = UNLIMITED;
    assert_eq!(node.interval(), (vec![UNLIMITED, UNLIMITED], 1));
}

#[test]
fn targets_are_sent_when_they_change() {
    let mut node = Node::new(Policy::StaticAlloc);
    node.add(1);
    assert_eq!(node.of(1).target_pages, TOTAL, "the first may have all until others come");
    assert_eq!(node.interval(), (vec![TOTAL], 0));
    node.add(2);
    assert_eq!(node.of(2).target_pages, TOTAL / 2);
    assert_eq!(node.interval(), (vec![TOTAL / 2, TOTAL / 2], 1));
    node.puts(1, 100, 100);
    assert_eq!(node.interval(), (vec![TOTAL / 2, TOTAL / 2], 0));
    node.clients.remove(0);
    assert_eq!(node.interval(), (vec![TOTAL], 1));
}

#[test]
fn reconf_static_waits_for_a_put() {
    let mut node = Node::new(Policy::ReconfStatic);
    node.add(1);
    node.add(2);
    assert_eq!(node.interval(), (vec![0, 0], 0));
    node.puts(2, 0, 1);
    assert_eq!(node.interval(), (vec![0, TOTAL], 1));
    node.puts(1, 0, 1);
    assert_eq!(node.interval(), (vec![TOTAL / 2, TOTAL / 2], 2));
    assert_eq!(node.interval().0, [TOTAL / 2, TOTAL / 2], "also while they do nothing");
}

#[test]
fn smart_alloc_counts_refusals_of_this_interval_alone() {
    let mut node = Node::new(smart());
    // It was refused before anybody looked: nobody knows when.
    node.add(1).puts_refused_at_target = 7;
    node.add(2);
    node.of(1).used_pages = 4900;
    node.of(2).used_pages = 4900;
    assert_eq!(node.interval().0, [5000, 5000]);
    node.puts(1, 0, 3);
    // 5200 and 5000 of 10,200.
    assert_eq!(node.interval().0, [5098, 4901]);
    assert_eq!(node.interval(), (vec![5098, 4901], 0), "there were no more");
    node.of(2).used_pages = 0;
    assert_eq!(node.interval().0, [5098, 4802]);
    // A counter that went back is no refusal.
    node.of(1).puts_refused_at_target = 0;
    assert_eq!(node.interval().0[0], 5098);
}

#[test]
fn a_cap_holds_and_does_not_let_a_target_run_away() {
    let mut node = Node::new(smart());
    node.add(1).used_pages = 300;
    node.clients[0].cap_pages = 300;
    for _ in 0..50 {
        node.puts(1, 0, 1);
        assert_eq!(node.interval().0, [300]);
    }
    node.clients[0].cap_pages = UNLIMITED;
    node.puts(1, 0, 1);
    assert_eq!(node.interval().0, [500], "2 % of the node more than the cap");
}

#[test]
fn a_policy_begins_anew() {
    let mut node = Node::new(Policy::Greedy);
    node.add(1).used_pages = 9000;
    node.add(2).used_pages = 1000;
    assert_eq!(node.interval().0, [UNLIMITED, UNLIMITED]);
    node.manager.set_policy(smart());
    assert_eq!(node.interval().0, [5000, 4900], "equal shares, less what is not used");
    node.manager.set_policy(smart());
    assert_eq!(node.interval().0, [5000, 4802], "the same policy goes on");
    node.manager.set_policy(Policy::Greedy);
    assert_eq!(node.interval().0, [UNLIMITED, UNLIMITED]);
    assert_eq!(node.manager.policy(), Policy::Greedy);
}

#[test]
fn a_node_without_room_gives_nothing() {
    for policy in [Policy::StaticAlloc, Policy::ReconfStatic, smart()] {
        let mut manager = Manager::new(policy);
        let statistics = Statistics { puts: 5, puts_refused_node_full: 5, ..Statistics::default() };
        let client = ManagedClient::new(ClientId(1), statistics);
        assert_eq!(manager.interval(0, &[client]), []);
    }
}

/// utility keeps what it knows from one interval to the next, and begins anew with another policy.
#[test]
fn utility_learns_from_interval_to_interval() {
    let mut node = Node::new(Policy::Utility(Utility::default()));
    node.add(1);
    node.add(2);
    let mut curve = Curve { live_pages: 9000, ..Curve::EMPTY };
    curve.gets[54] = 500.0;
    let work = |node: &mut Node, id: u64, gets: u64| {
        let statistics = node.of(id);
        let missed = 9000_u64.saturating_sub(statistics.target_pages) * gets / 9000;
        statistics.gets += gets;
        statistics.misses += missed;
        statistics.hits += gets - missed;
        statistics.puts += gets;
        statistics.puts_refused_at_target += missed;
        statistics.used_pages = statistics.target_pages.min(9000);
        node.clients[id as usize - 1].curve = Some(curve);
        node.interval().0
    };
    let mut targets = node.interval().0;
    assert_eq!(targets, [10_000, 10_000], "who comes may have what is free");
    for _ in 0..8 {
        targets = work(&mut node, 1, 1500);
    }
    assert!(targets[0] > 8000, "only one asks: {targets:?}");
    node.manager.set_interval_us(500_000);
    node.manager.set_policy(Policy::StaticAlloc);
    assert_eq!(node.interval().0, [5000, 5000]);
}

/// What was counted in an interval of one length is not taken for one of another.
#[test]
fn an_interval_of_another_length_begins_anew() {
    let mut node = Node::new(smart());
    node.add(1);
    node.add(2);
    node.manager.set_interval_us(1_000_000);
    assert_eq!(node.interval().0, [4900, 4900]);
    node.puts(1, 4900, 7);
    node.puts(2, 4900, 0);
    node.manager.set_interval_us(100_000);
    assert_eq!(node.interval().0, [4900, 4900], "the refusals may be of any time");
    node.puts(1, 0, 7);
    node.manager.set_interval_us(100_000);
    assert_ne!(node.interval().0, [4900, 4900], "these are of this interval");
}

/// Frames of programs, handed out by a policy.
fn frames(policy: Policy, caps: [u64; 2]) -> Node {
    let mut node = Node { manager: Manager::of_frames(policy), clients: Vec::new() };
    for (id, cap_pages) in (1..).zip(caps) {
        node.add(id);
        node.clients[id as usize - 1].cap_pages = cap_pages;
    }
    node
}

#[test]
fn frames_are_never_handed_out_twice_even_by_greedy() {
    let mut node = frames(Policy::Greedy, [8000, 8000]);
    assert_eq!(node.interval().0, [5000, 5000]);
    node.of(1).used_pages = 5000;
    assert_eq!(node.interval().0, [7500, 2500], "what is not used is had by halves");
    node.of(1).used_pages = 7500;
    node.of(2).used_pages = 2500;
    assert_eq!(node.interval().0, [7500, 2500], "who came first keeps what it has");
    // One alone has its cap.
    node.clients.pop();
    assert_eq!(node.interval().0, [8000]);
}

#[test]
fn a_floor_of_frames_holds_under_every_policy() {
    for policy in
        [Policy::Greedy, Policy::ReconfStatic, smart(), Policy::Utility(Utility::default())]
    {
        let mut node = frames(policy, [TOTAL, TOTAL]);
        node.interval();
        node.of(1).used_pages = TOTAL;
        node.puts(1, 0, 5);
        node.clients[1].floor_pages = 3000;
        for _ in 0..300 {
            node.puts(1, 0, 5);
            let targets = node.interval().0;
            assert!(
                targets[1] >= 3000 && targets.iter().sum::<u64>() <= TOTAL,
                "{policy} {targets:?}"
            );
        }
    }
}

#[test]
fn programs_that_nobody_samples_have_smart_alloc_for_utility() {
    let utility = Policy::Utility(Utility::default());
    let node = frames(utility, [TOTAL; 2]);
    assert_eq!(node.manager.policy(), smart());
    let mut node = frames(Policy::Greedy, [TOTAL; 2]);
    node.manager.set_policy(utility);
    assert_eq!(node.manager.policy(), smart());
    node.of(2).used_pages = 2000;
    node.interval();
    let before = node.interval().0;
    node.puts(1, 0, 1);
    let after = node.interval().0;
    assert!(after[0] > before[0] && after[1] < before[1], "{before:?} {after:?}");
}

/// As the daemon sets it before each interval.
#[test]
fn utility_that_is_set_again_forgets_nothing_of_programs() {
    let utility = Policy::Utility(Utility::default());
    let mut node = frames(utility, [TOTAL; 2]);
    (node.of(1).used_pages, node.of(2).used_pages) = (2000, 2000);
    node.interval();
    let mut before = node.interval().0[0];
    for interval in 2..6 {
        node.puts(1, 0, 1);
        node.manager.set_policy(utility);
        let after = node.interval().0[0];
        assert!(after > before, "{interval}: {before} {after}");
        before = after;
    }
}
