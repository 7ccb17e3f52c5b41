//! Paged programs: who is counted, what each is told, and what outlives a kill.

use std::sync::Arc;
use std::time::Duration;

use spillway_directory::{
    ClientChange, ClientRegistry, ClientSettings, Error, Journal, Policy, Users, Who, is_program,
};
use spillway_store::{Config, Store};
use spillway_types::{Denied, Limits, ProgramCounters, Programs, Registration};

const LIMITS: Limits = Limits { connections_max: 2, operations_max: 8, bytes_max: 1 << 20 };
const SECOND: Duration = Duration::from_secs(1);

fn policy(users: Users, grace_s: u64) -> Policy {
    let target_pages = u64::MAX;
    Policy { users, hosts: false, exposed: false, target_pages, limits: LIMITS, grace_s }
}

fn opened(journal: Journal, policy: Policy) -> ClientRegistry {
    let store = Arc::new(Store::open(Config::embedded(16 << 20)).unwrap());
    ClientRegistry::open(store, journal, policy).unwrap()
}

fn registry(users: Users) -> ClientRegistry {
    opened(Journal::create(16 << 20).unwrap(), policy(users, 60))
}

fn who(uid: u32, pid: i32, program: &str) -> Registration<'_> {
    Registration { uid, gid: uid, pid, program, local_pages: 5000, budget_pages: 5000 }
}

fn cap(pages: u64) -> ClientChange {
    ClientChange { cap_pages: Some(pages), ..ClientChange::default() }
}

#[test]
fn a_program_has_a_name_of_its_own_and_no_part_in_the_store() {
    let registry = registry(Users::All);
    for (pid, program, name) in [
        (7, "python3", "python3-7"),
        (8, "../../x y\n", "....xy-8"),
        (9, "", "program-9"),
        // The same process again, by another connection.
        (7, "python3", "python3-7-2"),
    ] {
        let (id, orders) = registry.register(who(1, pid, program)).unwrap();
        assert!(is_program(id));
        assert_eq!((orders.target_pages, orders.beyond_local), (u64::MAX, false));
        let view = registry.client(name).unwrap();
        assert_eq!((view.id, view.who, view.cap_pages), (id, Who::Program(pid), 5000));
    }
    assert_eq!(registry.programs().len(), 4);
    let series = |name: &str| registry.client(name).unwrap().series.unwrap();
    let (first, second) = (series("python3-7"), series("python3-7-2"));
    assert_eq!((first.program.as_str(), first.number), ("python3", 1));
    assert_eq!((second.program.as_str(), second.number), ("python3", 2));
    registry.leave(registry.client("python3-7").unwrap().id);
    registry.register(who(1, 11, "python3")).unwrap();
    assert_eq!(series("python3-11"), first, "a number that has become free is used again");
    registry.leave(registry.client("python3-11").unwrap().id);
    registry.register(who(1, 7, "python3")).unwrap();
    assert!(registry.clients().unwrap().is_empty(), "no client of the store comes of it");
    let taken = ClientSettings {
        name: "python3-7".into(),
        who: Who::User(5),
        secret: None,
        target_pages: 1,
        floor_pages: 0,
        weight: 1,
        limits: LIMITS,
        domain: None,
        shared: Vec::new(),
    };
    assert!(matches!(registry.add_client(&taken), Err(Error::ClientExists(_))));
}

#[test]
fn only_users_that_would_be_let_in_are_counted_and_not_without_end() {
    let same = registry(Users::None);
    assert_eq!(same.register(who(1, 1, "a")), Err(Denied::Unknown));
    assert_eq!(same.refusals().unknown, 1);
    let all = registry(Users::All);
    let first = all.register(who(1, 1, "a")).unwrap().0;
    let more = (2..10_000).take_while(|&pid| all.register(who(1, pid, "a")).is_ok()).count();
    assert_eq!(more, 31);
    assert_eq!(all.register(who(1, 99, "a")), Err(Denied::Connections));
    all.register(who(2, 99, "a")).unwrap();
    all.leave(first);
    all.register(who(1, 99, "a")).unwrap();
}

#[test]
fn targets_and_caps_reach_the_program_with_its_next_report() {
    let registry = registry(Users::All);
    registry.set_programs_first_target(SECOND, Some(700));
    let (id, orders) = registry.register(who(1, 1, "a")).unwrap();
    assert_eq!((orders.target_pages, orders.interval_ms), (700, 1000));
    let again = Registration { budget_pages: 300, ..who(1, 2, "told") };
    let (told, orders) = registry.register(again).unwrap();
    assert_eq!(orders.target_pages, 300, "what it was told before holds for now");
    registry.leave(told);
    registry.set_programs_first_target(SECOND * 3600, Some(700));
    let counters = ProgramCounters {
        resident_pages: 650,
        reserve_pages: 20,
        faults: 90,
        first_touches: 60,
        refaults: 30,
        pages_out: 40,
    };
    assert_eq!(registry.report(id, counters).interval_ms, 1000, "it is to hear of changes");
    registry.set_program_target(id, 800);
    assert_eq!(registry.report(id, counters).target_pages, 800);
    let changed = registry.change_client("a-1", cap(600)).unwrap();
    assert_eq!(changed.as_deref(), Some("cap 2.3 MiB (was 19.5 MiB)"));
    assert_eq!(registry.change_client("a-1", cap(600)).unwrap(), None);
    let orders = registry.report(id, counters);
    assert_eq!((orders.target_pages, orders.beyond_local), (600, false));
    let view = registry.client("a-1").unwrap();
    assert_eq!((view.cap_pages, view.reserve_pages), (600, 20));
    let its = view.statistics;
    assert_eq!((its.used_pages, its.target_pages, its.evicted_pages), (650, 600, 40));
    assert_eq!((its.puts, its.puts_refused_at_target, its.gets, its.misses), (90, 30, 90, 30));
    let floor = |pages| ClientChange { floor_pages: Some(pages), ..ClientChange::default() };
    assert!(matches!(registry.change_client("a-1", floor(601)), Err(Error::FloorAboveCap { .. })));
    // Every program has a floor of its own, which no cap has to heed.
    registry.change_client("a-1", cap(1)).unwrap();
    registry.change_client("a-1", cap(6000)).unwrap();
    assert!(registry.report(id, counters).beyond_local);
    registry.change_client("a-1", cap(u64::MAX)).unwrap();
    assert_eq!(registry.client("a-1").unwrap().cap_pages, 5000, "its user's limit is left");
    // No capacity for programs: they keep what they have.
    registry.set_programs_first_target(SECOND, None);
    assert_eq!(registry.report(id, counters).target_pages, u64::MAX);
    // A target for one that has gone meanwhile is no problem, nor is its report.
    registry.leave(id);
    registry.leave(id);
    registry.set_program_target(id, 5);
    assert_eq!(registry.report(id, counters).target_pages, u64::MAX);
    assert!(matches!(registry.client("a-1"), Err(Error::NoClient(_))));
    assert!(matches!(registry.change_client("a-1", cap(1)), Err(Error::NoClient(_))));
}

#[test]
fn what_the_operator_said_outlives_a_kill_and_goes_a_while_after_the_program() {
    let journal = Journal::create(16 << 20).unwrap();
    let kept = journal.descriptor().try_clone_to_owned().unwrap();
    let before = opened(journal, policy(Users::All, 60));
    before.register(who(1, 1, "a")).unwrap();
    let change = ClientChange { cap_pages: Some(900), floor_pages: Some(400), weight: Some(3) };
    before.change_client("a-1", change).unwrap();
    before.expire();
    drop(before);
    let kept_again = kept.try_clone().unwrap();
    let after = opened(Journal::reopen(kept).unwrap(), policy(Users::All, 60));
    after.expire();
    let (again, _) = after.register(who(1, 1, "a")).unwrap();
    let view = after.client("a-1").unwrap();
    assert_eq!((view.cap_pages, view.floor_pages, view.weight), (900, 400, 3));
    after.leave(again);
    after.expire();
    drop(after);
    let without_grace = opened(Journal::reopen(kept_again).unwrap(), policy(Users::All, 0));
    without_grace.register(who(1, 1, "a")).unwrap();
    without_grace.expire();
    assert_eq!(without_grace.client("a-1").unwrap().cap_pages, 900, "it is here");
    let id = without_grace.client("a-1").unwrap().id;
    without_grace.leave(id);
    without_grace.expire();
    without_grace.register(who(1, 1, "a")).unwrap();
    assert_eq!(without_grace.client("a-1").unwrap().cap_pages, 5000, "nobody said anything of it");
}

#[test]
fn a_client_keeps_what_was_set_by_hand_until_the_file_says_something_else() {
    let registry = registry(Users::None);
    let named = |floor_pages, weight| ClientSettings {
        name: "alice".into(),
        who: Who::User(5),
        secret: None,
        target_pages: 50,
        floor_pages,
        weight,
        limits: LIMITS,
        domain: None,
        shared: Vec::new(),
    };
    let configure = |floor_pages, weight| {
        let policy = policy(Users::None, 60);
        registry.configure(&[named(floor_pages, weight)], &[], policy).unwrap();
        let view = registry.client("alice").unwrap();
        (view.cap_pages, view.floor_pages, view.weight)
    };
    assert_eq!(configure(10, 2), (50, 10, 2));
    let change = ClientChange { cap_pages: Some(40), floor_pages: Some(20), weight: Some(7) };
    registry.change_client("alice", change).unwrap();
    assert_eq!(configure(10, 2), (40, 20, 7));
    assert_eq!(configure(11, 2), (40, 11, 7));
    assert_eq!(configure(11, 3), (40, 11, 3));
}
