//! Events that tell a host of changed namespaces, tested on connections without sockets.

use crate::support::{ALICE, Answer, BLOCKS, Host, POOLS, World};
use spillway_types::PoolSpec;
use spillway_wire::identify::{self, CommandSet, decode_namespace_list, structure};
use spillway_wire::log_page::{self, Event, GetLogPage, log};
use spillway_wire::nvme::{Command, Status, admin, block, feature};
use spillway_wire::nvme_tcp::Pdu;

/// The id of the command that an event completes.
const REQUEST: u16 = 900;

/// A controller whose host waits for events, as a kernel does before its first scan.
fn waiting(world: &World, subsystem: &str) -> (Host, u16) {
    let (mut admin, controller) = world.admin(subsystem, ALICE);
    let mut features = Command::new(admin::SET_FEATURES, admin.id(), 0);
    features.cdw10 = feature::ASYNC_EVENTS.into();
    features.cdw11 = Event::NAMESPACES_CHANGED_BIT;
    assert!(admin.ask(features, &[]).0.status.is_success());
    wait(&mut admin);
    (admin, controller)
}

fn wait(admin: &mut Host) {
    let request = admin.encode(&Pdu::Command(Command::new(admin::ASYNC_EVENT, REQUEST, 0), &[]));
    assert!(admin.send(&request).unwrap().is_empty(), "an event before anything changed");
}

/// Whether these are the event alone, or nothing.
fn is_event(answers: &[Answer]) -> bool {
    match answers {
        [] => false,
        [Answer::Completed(event)] => {
            let expected = (REQUEST, Event::NAMESPACES_CHANGED.encode());
            assert_eq!((event.id, event.result), expected);
            true
        }
        others => panic!("{others:?}"),
    }
}

/// Whether an event comes without a command.
fn comes(admin: &mut Host) -> bool {
    admin.connection.poll(0, &mut admin.out).unwrap();
    is_event(&admin.answers())
}

/// The list of namespaces, and whether an event came behind it.
fn list(admin: &mut Host, which: u8, from: u32) -> (Vec<u32>, bool) {
    let command = identify::identify(admin.id(), which, from, CommandSet::KeyValue);
    let command = admin.encode(&Pdu::Command(command, &[]));
    let answers = admin.send(&command).unwrap();
    let [Answer::Data(_, list), rest @ ..] = &answers[..] else { panic!("{answers:?}") };
    (decode_namespace_list(list).collect(), is_event(rest))
}

/// A scan, as Linux does it: the list, and whether an event came behind it.
fn scan(admin: &mut Host) -> (Vec<u32>, bool) {
    list(admin, structure::NAMESPACE_LIST, 0)
}

/// Reads what changed, and waits for the next event.
fn changes(admin: &mut Host) -> Vec<u32> {
    changed(admin).expect("fewer than a log can name")
}

/// The same; none if more changed than the log can name.
fn changed(admin: &mut Host) -> Option<Vec<u32>> {
    let get = GetLogPage {
        log: log::CHANGED_NAMESPACES,
        retain_event: false,
        offset: 0,
        bytes: 4096,
        command_set: 0,
    };
    let command = get.encode(admin.id());
    let changed = log_page::decode_changed(&admin.ask(command, &[]).1);
    wait(admin);
    changed
}

fn create_pool(world: &World) -> u32 {
    let pool = world.store.create_pool(world.alice, PoolSpec::PERSISTENT).unwrap();
    let pools = world.store.pools(world.alice).unwrap();
    pools.iter().find(|its| its.id == pool).unwrap().number
}

#[test]
fn the_kernel_learns_of_namespaces_that_come() {
    let world = World::new();
    let (mut admin, _) = waiting(&world, POOLS);
    let number = create_pool(&world);
    world.target.namespaces_changed(world.bob);
    assert!(!comes(&mut admin), "only another client's namespaces changed");
    world.target.namespaces_changed(world.alice);
    assert!(comes(&mut admin));
    assert_eq!(changes(&mut admin), [number]);
}

#[test]
fn the_kernel_learns_of_a_namespace_that_goes_while_it_is_connected() {
    let world = World::new();
    let (mut admin, controller) = waiting(&world, BLOCKS);
    let (namespaces, _) = scan(&mut admin);
    let [namespace] = namespaces[..] else { panic!("not one namespace") };
    assert_eq!(changes(&mut admin), namespaces);
    let mut io = world.io(BLOCKS, ALICE, controller);
    let read = |io: &mut Host| {
        let mut command = Command::new(block::READ, io.id(), namespace);
        command.data.bytes = 4096;
        io.ask(command, &[]).0.status
    };
    assert_eq!(read(&mut io), Status::SUCCESS);
    world.destroy_device();
    assert!(comes(&mut admin));
    assert_eq!(scan(&mut admin), (vec![], false));
    assert_eq!(read(&mut io), Status::INVALID_NAMESPACE.finally());
    assert_eq!(read(&mut io), Status::INVALID_NAMESPACE.finally(), "the connection goes on");
}

/// What a kernel kept from an earlier association may have another identity: the daemon restarted with an empty store.
#[test]
fn the_kernel_scans_again_after_the_first_list_of_an_association() {
    let world = World::new();
    for which in [structure::NAMESPACE_LIST, structure::NAMESPACE_LIST_OF_SET] {
        let first = create_pool(&world);
        let (mut admin, _) = waiting(&world, POOLS);
        assert!(!comes(&mut admin), "before the list, an event causes no second scan");
        let behind = list(&mut admin, which, u32::MAX - 2);
        assert_eq!(behind, (vec![], false), "not the list's beginning");
        let (all, told) = list(&mut admin, which, 0);
        assert!(told && all.contains(&first), "{all:?}");
        assert_eq!(changes(&mut admin), all);
        assert_eq!(list(&mut admin, which, 0), (all, false), "once");
        assert!(!comes(&mut admin));
        let added = create_pool(&world);
        world.target.namespaces_changed(world.alice);
        assert!(comes(&mut admin));
        assert_eq!(changes(&mut admin), [added], "later changes alone");
    }
}

/// A list and a log have room for 1,024 namespaces.
#[test]
fn of_more_namespaces_than_a_log_names_the_host_is_told_that_all_changed() {
    let world = World::new();
    let pools: Vec<_> = (0..1_025).map(|_| create_pool(&world)).collect();
    let (mut admin, _) = waiting(&world, POOLS);
    let (first, told) = scan(&mut admin);
    assert_eq!((first.len(), told), (1_024, true));
    // Linux goes on behind the last one that it got.
    let (rest, told) = list(&mut admin, structure::NAMESPACE_LIST, first[1_023]);
    assert_eq!(([first, rest].concat(), told), (pools, false));
    assert_eq!(changed(&mut admin), None, "all of them");
    assert!(!scan(&mut admin).1, "once");
    let added = create_pool(&world);
    world.target.namespaces_changed(world.alice);
    assert!(comes(&mut admin));
    assert_eq!(changes(&mut admin), [added], "later changes alone");
}

#[test]
fn a_host_that_asked_for_no_events_gets_none() {
    let world = World::new();
    create_pool(&world);
    let (mut admin, _) = world.admin(POOLS, ALICE);
    wait(&mut admin);
    assert!(!scan(&mut admin).1);
}
