//! What hosts can rely on, tested on connections without sockets.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::support::{ALICE, Answer, BLOCKS, BOB, Host, POOLS, World};
use spillway_block::Device;
use spillway_nvme_tcp::{Config, Error};
use spillway_types::{Key, PoolSpec};
use spillway_wire::fabrics::{ANY_CONTROLLER, ConnectResult, DISCOVERY_NQN};
use spillway_wire::identify::{
    self, CommandSet, Controller, PoolNamespace, decode_namespace_list, namespace_uuid, structure,
};
use spillway_wire::kv::{self, CreatePool, KeyList, PoolEntry};
use spillway_wire::log_page::{self, DiscoveryEntry, GetLogPage, log};
use spillway_wire::nvme::{Command, Range, Status, admin, block};
use spillway_wire::nvme_tcp::header::CommonHeader;
use spillway_wire::nvme_tcp::{InitRequest, Pdu, Transfer};

fn create_pool(admin: &mut Host, spec: PoolSpec) -> u32 {
    let command = Command::new(kv::admin::CREATE_POOL, admin.id(), 0);
    let (completion, _) = admin.ask(command, &CreatePool(spec).encode());
    assert_eq!(completion.status, Status::SUCCESS);
    completion.result as u32
}

fn namespaces(admin: &mut Host) -> Vec<u32> {
    let command =
        identify::identify(admin.id(), structure::NAMESPACE_LIST, 0, CommandSet::KeyValue);
    let (completion, list) = admin.ask(command, &[]);
    assert_eq!(completion.status, Status::SUCCESS);
    decode_namespace_list(&list).collect()
}

fn get(io: &mut Host, pool: u32, key: Key, room: u32) -> (Status, u64, Vec<u8>) {
    let command = kv::retrieve(kv::io::RETRIEVE, io.id(), pool, key, room);
    let (completion, value) = io.ask(command, &[]);
    (completion.status.code(), completion.result, value)
}

#[test]
fn everybody_is_told_the_same_two_subsystems() {
    let world = World::new();
    let logs: Vec<Vec<u8>> = [ALICE, "nqn.2026-11.io.spillway:nobody"]
        .map(|host| {
            let (mut admin, _) = world.admin(DISCOVERY_NQN, host);
            let get = GetLogPage {
                log: log::DISCOVERY,
                retain_event: false,
                offset: 0,
                bytes: 3072,
                command_set: 0,
            };
            let command = get.encode(admin.id());
            admin.ask(command, &[]).1
        })
        .into();
    assert_eq!(logs[0], logs[1]);
    assert_eq!(log_page::decode_discovery_header(&logs[0]).unwrap().1, 2);
    let entry = DiscoveryEntry::decode(&logs[0][1024..]).unwrap().unwrap();
    assert_eq!(entry.subsystem, BLOCKS);
    assert_eq!(entry.address, "127.0.0.1:4420".parse().unwrap());
}

#[test]
fn unknown_hosts_and_subsystems_are_refused() {
    let world = World::new();
    let mut host = world.host();
    host.initialize(InitRequest::default());
    let refused = host.connect(POOLS, "nqn.2026-11.io.spillway:nobody", 1, ANY_CONTROLLER, 0);
    assert_eq!(refused.status, Status::CONNECT_HOST.finally());
    let complaint = host.connection.complaint().unwrap();
    assert!(complaint.starts_with("refused to connect a queue"), "{complaint}");
    assert_eq!(host.connection.complaint(), None, "it is given once");
    let refused = host.connect("nqn.2026-11.io.spillway:other", ALICE, 1, ANY_CONTROLLER, 0);
    assert_eq!((refused.status.code(), refused.result), (Status::CONNECT_PARAMETERS, 0x1_0100));
    let command = Command::new(admin::KEEP_ALIVE, host.id(), 0);
    assert_eq!(host.ask(command, &[]).0.status.code(), Status::SEQUENCE);
    assert!(host.connect(POOLS, ALICE, 1, ANY_CONTROLLER, 0).status.is_success());
}

#[test]
fn values_of_every_size_come_back_under_every_framing() {
    let world = World::new();
    for (header_digest, data_digest) in [(false, false), (true, true)] {
        let init = InitRequest { header_digest, data_digest, ..Default::default() };
        let (mut admin, controller) = world.admin_with(init, POOLS, ALICE, 1);
        let pool = create_pool(&mut admin, PoolSpec::PERSISTENT);
        let mut io = world.io_with(init, POOLS, ALICE, controller);
        for bytes in [1usize, 100, 4096, 8192, 131_072, 300_000, 3 << 20] {
            let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
            let key = Key::new(u64::MAX - 5, bytes as u32);
            let stored = kv::store(io.id(), pool, key, bytes as u32);
            assert_eq!(io.ask(stored, &value).0.status, Status::SUCCESS, "{bytes}");
            let (status, length, got) = get(&mut io, pool, key, bytes as u32);
            assert_eq!((status, length), (Status::SUCCESS, bytes as u64));
            assert!(got == value, "{bytes} bytes came back as others");
        }
    }
}

#[test]
fn of_a_value_longer_than_its_room_the_beginning_comes_and_the_value_stays() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::EPHEMERAL);
    let mut io = world.io(POOLS, ALICE, controller);
    let key = Key::new(1, 2);
    let store = kv::store(io.id(), pool, key, 4096);
    io.ask(store, &[9; 4096]);
    assert_eq!(get(&mut io, pool, key, 100), (Status::SUCCESS, 4096, vec![9; 100]));
    // A command is a get, however often the store is asked for it.
    assert_eq!(world.store.statistics(world.alice).unwrap().gets, 1);
    let take = kv::retrieve(kv::io::TAKE, io.id(), pool, key, 100);
    let (refused, none) = io.ask(take, &[]);
    assert_eq!((refused.status.code(), refused.result, none.len()), (Status::VALUE_SIZE, 4096, 0));
    assert_eq!(get(&mut io, pool, key, 4096), (Status::SUCCESS, 4096, vec![9; 4096]));
    assert_eq!(get(&mut io, pool, key, 4096).0, Status::KEY_NOT_FOUND, "a get removes the value");
}

#[test]
fn the_beginning_of_every_kind_of_value_comes() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::EPHEMERAL);
    let mut io = world.io(POOLS, ALICE, controller);
    for bytes in [2usize, 100, 3000, 4096, 5000, 131_073, 300_000, 3 << 20] {
        let noise: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        for (index, value) in [(1, noise), (2, vec![0; bytes]), (3, b"ab".repeat(bytes / 2))] {
            let (key, bytes) = (Key::new(bytes as u64, index), value.len());
            let stored = kv::store(io.id(), pool, key, bytes as u32);
            assert_eq!(io.ask(stored, &value).0.status, Status::SUCCESS, "{bytes}");
            let rooms = [1, 99, 4095, 4097, 131_072, 131_073, 200_000, bytes - 1];
            for room in rooms.into_iter().filter(|&room| room < bytes) {
                let (status, length, got) = get(&mut io, pool, key, room as u32);
                assert_eq!((status, length), (Status::SUCCESS, bytes as u64), "{room}");
                assert!(got == value[..room], "{room} of {bytes} bytes came back as others");
            }
            let (status, _, got) = get(&mut io, pool, key, bytes as u32);
            assert!(status == Status::SUCCESS && got == value, "{bytes}");
            assert_eq!(get(&mut io, pool, key, 64).0, Status::KEY_NOT_FOUND);
        }
    }
}

#[test]
fn keys_are_taken_deleted_and_listed() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::PERSISTENT);
    let mut io = world.io(POOLS, ALICE, controller);
    for index in 0..5 {
        let store = kv::store(io.id(), pool, Key::new(7, index), 64);
        io.ask(store, &[index as u8; 64]);
    }
    let take = kv::retrieve(kv::io::TAKE, io.id(), pool, Key::new(7, 0), 64);
    assert_eq!(io.ask(take, &[]).1, [0; 64]);
    let take = kv::retrieve(kv::io::TAKE, io.id(), pool, Key::new(7, 0), 64);
    assert_eq!(io.ask(take, &[]).0.status, Status::KEY_NOT_FOUND.finally());
    let delete = kv::with_key(kv::io::DELETE, io.id(), pool, Key::new(7, 1));
    assert!(io.ask(delete, &[]).0.status.is_success());
    let exist = kv::with_key(kv::io::EXIST, io.id(), pool, Key::new(7, 1));
    assert_eq!(io.ask(exist, &[]).0.status.code(), Status::KEY_NOT_FOUND);
    let list = kv::list(io.id(), pool, None, 4096);
    let (_, listed) = io.ask(list, &[]);
    let mut keys: Vec<Key> = KeyList::decode(&listed).unwrap().map(Result::unwrap).collect();
    keys.sort_by_key(|key| key.index);
    assert_eq!(keys, [Key::new(7, 2), Key::new(7, 3), Key::new(7, 4)]);
    let flush = kv::flush_object(io.id(), pool, 7);
    assert_eq!(io.ask(flush, &[]).0.result, 3);
}

#[test]
fn a_client_sees_its_own_namespaces_and_counters_only() {
    let world = World::new();
    let (mut alices, _) = world.admin(POOLS, ALICE);
    let (mut bobs, bobs_controller) = world.admin(POOLS, BOB);
    let pool = create_pool(&mut alices, PoolSpec::PERSISTENT);
    assert_eq!(namespaces(&mut alices), [pool], "the block device's pool is no namespace");
    assert_eq!(namespaces(&mut bobs), []);
    let mut io = world.io(POOLS, BOB, bobs_controller);
    let key = Key::new(1, 1);
    assert_eq!(get(&mut io, pool, key, 64).0, Status::INVALID_NAMESPACE);
    let store = kv::store(io.id(), pool, key, 64);
    assert_eq!(io.ask(store, &[1; 64]).0.status.code(), Status::INVALID_NAMESPACE);
    let destroy = Command::new(kv::admin::DESTROY_POOL, bobs.id(), pool);
    assert_eq!(bobs.ask(destroy, &[]).0.status.code(), Status::INVALID_NAMESPACE);
    for host in [&mut alices, &mut bobs] {
        let mut command = Command::new(kv::admin::STATISTICS, host.id(), 0);
        command.data.bytes = 4096;
        let (_, bytes) = host.ask(command, &[]);
        assert_eq!(kv::decode_statistics(&bytes).unwrap().puts, 0);
    }
    let (mut blocks, _) = world.admin(BLOCKS, BOB);
    assert_eq!(namespaces(&mut blocks), []);
    // A host gets no queue of another host's controller, and none under another host's name.
    let (_alices_admin, alices_blocks) = world.admin(BLOCKS, ALICE);
    let mut stranger = world.host();
    stranger.initialize(InitRequest::default());
    let refused = stranger.connect(BLOCKS, BOB, 1, alices_blocks, 1);
    assert_eq!(refused.status.code(), Status::CONNECT_PARAMETERS);
}

#[test]
fn pools_are_listed_and_go() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::EPHEMERAL);
    let mut io = world.io(POOLS, ALICE, controller);
    let store = kv::store(io.id(), pool, Key::new(1, 1), 4096);
    io.ask(store, &[1; 4096]);
    let mut command = Command::new(kv::admin::LIST_POOLS, admin.id(), 0);
    command.data.bytes = 4096;
    let (completion, bytes) = admin.ask(command, &[]);
    let entry = PoolEntry::decode(&bytes).unwrap();
    assert_eq!((completion.result, entry.number, entry.pages), (1, pool, 1));
    assert_eq!(entry.spec, PoolSpec::EPHEMERAL);
    let of_set =
        identify::identify(admin.id(), structure::NAMESPACE_OF_SET, pool, CommandSet::KeyValue);
    let (_, bytes) = admin.ask(of_set, &[]);
    assert_eq!(PoolNamespace::decode(&bytes).unwrap().used_bytes, 4096);
    let destroy = Command::new(kv::admin::DESTROY_POOL, admin.id(), pool);
    assert!(admin.ask(destroy, &[]).0.status.is_success());
    assert_eq!(get(&mut io, pool, Key::new(1, 1), 64).0, Status::INVALID_NAMESPACE);
}

#[test]
fn a_new_association_of_a_host_ends_its_old_one_first() {
    let world = World::new();
    let (mut old_admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut old_admin, PoolSpec::PERSISTENT);
    let mut old = world.io(POOLS, ALICE, controller);
    let other_host = world.admin_with(InitRequest::default(), POOLS, ALICE, 2);
    let (_new_admin, newer) = world.admin(POOLS, ALICE);
    let late = kv::store(old.id(), pool, Key::new(1, 1), 64);
    let late = old.encode(&Pdu::Command(late, &[1; 64]));
    assert!(matches!(old.send(&late), Err(Error::ControllerGone)));
    let mut io = world.io(POOLS, ALICE, newer);
    assert_eq!(get(&mut io, pool, Key::new(1, 1), 64).0, Status::KEY_NOT_FOUND);
    let mut other = other_host.0;
    assert_eq!(namespaces(&mut other), [pool], "another host id is another host");
}

#[test]
fn blocks_are_read_written_compared_and_given_back() {
    let world = World::new();
    let (mut admin, controller) = world.admin(BLOCKS, ALICE);
    let [namespace] = namespaces(&mut admin)[..] else { panic!("not one namespace") };
    let names =
        identify::identify(admin.id(), structure::NAMESPACE_NAMES, namespace, CommandSet::Block);
    let uuid = namespace_uuid(&admin.ask(names, &[]).1).unwrap();
    assert_eq!(uuid, Some(world.device.geometry().uuid));
    let mut io = world.io(BLOCKS, ALICE, controller);
    let command = |io: &mut Host, opcode: u8, first: u32, blocks: u32| {
        let mut command = Command::new(opcode, io.id(), namespace);
        command.data.bytes = blocks * 4096;
        command.cdw10 = first;
        command.cdw12 = blocks - 1;
        command
    };
    let data: Vec<u8> = (0..40 * 4096u32).map(|at| (at / 3) as u8).collect();
    let write = command(&mut io, block::WRITE, 8, 40);
    assert!(io.ask(write, &data).0.status.is_success());
    let read = command(&mut io, block::READ, 8, 40);
    assert!(io.ask(read, &[]).1 == data);
    let compare = command(&mut io, block::COMPARE, 9, 1);
    assert!(io.ask(compare, &data[4096..8192]).0.status.is_success());
    let compare = command(&mut io, block::COMPARE, 9, 1);
    assert_eq!(io.ask(compare, &data[..4096]).0.status.code(), Status::COMPARE_FAILURE);
    let mut zeroes = command(&mut io, block::WRITE_ZEROES, 8, 4);
    zeroes.data.bytes = 0;
    assert!(io.ask(zeroes, &[]).0.status.is_success());
    let mut dataset = Command::new(block::DATASET_MANAGEMENT, io.id(), namespace);
    dataset.cdw11 = Range::DEALLOCATE;
    let range = Range { first_block: 12, blocks: 4 };
    assert!(io.ask(dataset, &range.encode()).0.status.is_success());
    let read = command(&mut io, block::READ, 8, 9);
    let (_, got) = io.ask(read, &[]);
    assert!(
        got[..8 * 4096].iter().all(|&byte| byte == 0)
            && got[8 * 4096..] == data[8 * 4096..9 * 4096]
    );
    let beyond = command(&mut io, block::READ, 255, 2);
    assert_eq!(io.ask(beyond, &[]).0.status, Status::OUT_OF_RANGE.finally());
    let flush = Command::new(block::FLUSH, io.id(), namespace);
    assert!(io.ask(flush, &[]).0.status.is_success());
}

#[test]
fn silent_hosts_are_let_go() {
    let world = World::new();
    let mut mute = world.host();
    assert_eq!(mute.connection.deadline_ms(0), Some(10_000));
    assert!(mute.connection.poll(9_999, &mut mute.out).is_ok());
    assert!(matches!(mute.connection.poll(10_000, &mut mute.out), Err(Error::Silent)));
    assert_eq!(world.late.load(Ordering::Relaxed), 1);
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let mut io = world.io(POOLS, ALICE, controller);
    admin.now_ms = 1_500;
    let keep_alive = Command::new(admin::KEEP_ALIVE, admin.id(), 0);
    admin.ask(keep_alive, &[]);
    assert!(admin.connection.poll(3_400, &mut admin.out).is_ok());
    assert!(matches!(admin.connection.poll(3_500, &mut admin.out), Err(Error::Silent)));
    assert_eq!(world.late.load(Ordering::Relaxed), 1, "no handshake was late");
    assert!(io.connection.poll(3_500, &mut io.out).is_ok());
    drop(admin);
    assert!(matches!(io.connection.poll(3_500, &mut io.out), Err(Error::ControllerGone)));
}

#[test]
fn what_breaks_the_protocol_ends_that_connection() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::PERSISTENT);
    let ungranted =
        Transfer { command: 1, tag: 0, offset: 0, bytes: 8, last: true, success: false };
    let mut broken: Vec<(&str, Vec<u8>)> = Vec::new();
    let io = world.io(POOLS, ALICE, controller);
    broken.push(("data that was not granted", io.encode(&Pdu::HostData(ungranted, &[0; 8]))));
    broken.push(("a second ICReq", io.encode(&Pdu::InitRequest(InitRequest::default()))));
    broken.push(("a PDU for hosts", io.encode(&Pdu::Response(Default::default()))));
    broken.push(("no PDU", vec![0x55; 64]));
    let mut long = io.encode(&Pdu::Command(Command::new(0, 1, pool), &[]));
    let length_at = offset_of!(CommonHeader, pdu_length);
    long[length_at..][..4].copy_from_slice(&(1u32 << 30).to_le_bytes());
    broken.push(("a PDU of a gigabyte", long));
    drop(io);
    for (what, bytes) in broken {
        let mut io = world.io(POOLS, ALICE, controller);
        assert!(io.send(&bytes).is_err(), "{what}");
        assert!(matches!(io.answers()[..], [Answer::Terminated]), "{what}");
    }
    assert_eq!(namespaces(&mut admin), [pool]);
}

#[test]
fn values_wait_for_room_and_never_take_more() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::PERSISTENT);
    let mut io = world.io(POOLS, ALICE, controller);
    // The client's quota is 4 MiB and 4 operations.
    let start = |io: &mut Host, bytes: u32| {
        let command = kv::store(io.id(), pool, Key::new(1, bytes), bytes);
        let pdu = io.encode(&Pdu::Command(command, &[]));
        io.send(&pdu).unwrap()
    };
    let answers = start(&mut io, 5 << 20);
    let [Answer::Completed(refused)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(refused.status, Status::INVALID_FIELD.finally());
    assert!(matches!(start(&mut io, 3 << 20)[..], [Answer::Ready { .. }]));
    assert!(start(&mut io, 2 << 20).is_empty(), "there is no room for it yet");
    assert!(io.connection.deadline_ms(5).is_some());
    let (mut bobs, bobs_controller) = world.admin(POOLS, BOB);
    let bobs_pool = create_pool(&mut bobs, PoolSpec::PERSISTENT);
    let mut bob = world.io(POOLS, BOB, bobs_controller);
    let command = kv::store(bob.id(), bobs_pool, Key::new(1, 1), 1 << 20);
    assert!(bob.ask(command, &vec![1; 1 << 20]).0.status.is_success(), "Bob has room of his own");
}

#[test]
fn commands_that_lie_about_their_data_are_refused() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::PERSISTENT);
    let mut io = world.io(POOLS, ALICE, controller);
    let key = Key::new(1, 1);
    let mut status_of = |change: &dyn Fn(&mut Command), data: &[u8]| {
        let mut command = kv::store(io.id(), pool, key, 64);
        command.data.kind = 0x01;
        change(&mut command);
        let pdu = io.encode(&Pdu::Command(command, data));
        match &io.send(&pdu).unwrap()[..] {
            [Answer::Completed(completion)] => completion.status.code(),
            other => panic!("{other:?}"),
        }
    };
    let data = [1; 64];
    assert_eq!(status_of(&|_| {}, &data), Status::SUCCESS);
    assert_eq!(status_of(&|_| {}, &data[..60]), Status::DATA_LENGTH);
    assert_eq!(status_of(&|c| c.cdw10 = 65, &data), Status::DATA_LENGTH);
    assert_eq!(status_of(&|c| c.data.address = 4, &data), Status::DATA_LENGTH);
    assert_eq!(status_of(&|c| c.data.address = u64::MAX, &data), Status::DESCRIPTOR_OFFSET);
    assert_eq!(status_of(&|c| c.data.kind = 0x40, &data), Status::DESCRIPTOR_TYPE);
    assert_eq!(status_of(&|c| c.flags = 0, &data), Status::INVALID_FIELD);
    assert_eq!(status_of(&|c| c.opcode = 0x03, &data), Status::INVALID_OPCODE);
    assert_eq!(status_of(&|c| c.opcode = 0x41, &data), Status::INVALID_OPCODE);
    assert_eq!(status_of(&|c| c.cdw11 = 16, &data), Status::KEY_SIZE);
    assert_eq!(status_of(&|c| c.cdw11 |= 1 << 9, &data), Status::INVALID_FIELD);
    assert_eq!(status_of(&|c| c.namespace = 0, &data), Status::INVALID_NAMESPACE);
}

#[test]
fn a_controller_describes_itself() {
    let world = World::with(Config { nqn_base: "nqn.2026-11.test".into(), ..Config::default() });
    let (mut admin, id) = world.admin("nqn.2026-11.test:blocks", ALICE);
    let command = identify::identify(admin.id(), structure::CONTROLLER, 0, CommandSet::Block);
    let (_, bytes) = admin.ask(command, &[]);
    let controller = Controller::decode(&bytes).unwrap();
    assert_eq!((controller.id, controller.subsystem), (id, "nqn.2026-11.test:blocks"));
    assert_eq!((controller.transfer_shift, controller.capsule_data_bytes), (8, 4096));
    let result = ConnectResult { controller: id, authenticate: false };
    assert_eq!(ConnectResult::decode(result.encode()), result);
}

#[test]
fn commands_are_timed_by_kind() {
    const MIB: u32 = 1 << 20;
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let pool = create_pool(&mut admin, PoolSpec::PERSISTENT);
    let mut io = world.io(POOLS, ALICE, controller);
    for (index, bytes) in [(1, 4096), (2, MIB)] {
        let command = kv::store(io.id(), pool, Key::new(1, index), bytes);
        assert!(io.ask(command, &vec![1; bytes as usize]).0.status.is_success());
    }
    // Found or not, and with a short or long answer or room for one.
    for (index, room) in [(1, 4096), (2, MIB), (1, MIB), (3, MIB), (3, 4096)] {
        get(&mut io, pool, Key::new(1, index), room);
    }
    let command = kv::with_key(kv::io::DELETE, io.id(), pool, Key::new(1, 1));
    assert!(io.ask(command, &[]).0.status.is_success());

    let (mut admin, controller) = world.admin(BLOCKS, ALICE);
    let [namespace] = namespaces(&mut admin)[..] else { panic!("not one namespace") };
    let mut io = world.io(BLOCKS, ALICE, controller);
    for (opcode, blocks) in [
        (block::WRITE, 1),
        (block::WRITE, 40),
        (block::READ, 1),
        (block::READ, 2),
        (block::READ, 40),
        (block::COMPARE, 1),
    ] {
        let mut command = Command::new(opcode, io.id(), namespace);
        command.data.bytes = blocks * 4096;
        command.cdw12 = blocks - 1;
        let data = if opcode == block::READ { vec![] } else { vec![3; blocks as usize * 4096] };
        assert!(io.ask(command, &data).0.status.is_success(), "{opcode} {blocks}");
    }
    for opcode in [block::FLUSH, block::WRITE_ZEROES] {
        let command = Command::new(opcode, io.id(), namespace);
        assert!(io.ask(command, &[]).0.status.is_success(), "{opcode}");
    }
    let counts: Vec<(&str, u64)> = world
        .target
        .latencies()
        .histograms()
        .into_iter()
        .map(|(kind, histogram)| (kind.name(), histogram.counts.iter().sum()))
        .collect();
    let (other, counts) = counts.split_last().unwrap();
    assert!(other.0 == "other" && other.1 >= 1, "{other:?}");
    let expected = [
        ("get", 5),
        ("put", 2),
        ("remove", 1),
        ("read", 3),
        ("write", 2),
        ("discard", 1),
        ("flush", 1),
    ];
    assert_eq!(counts, expected);
}
