//! Data in flight: the memory that it uses, the quota that it counts against, the time that it may take.

use spillway_block::Device;
use spillway_nvme_tcp::{Config, Error};
use spillway_types::{Key, PoolSpec, Put};
use spillway_wire::kv::{self, CreatePool};
use spillway_wire::nvme::{Command, DataPointer, Status, block};
use spillway_wire::nvme_tcp::{InitRequest, Pdu, Transfer};

use crate::support::{ALICE, Answer, BLOCKS, BOB, Host, POOLS, World};

const MIB: u32 = 1 << 20;
const TIMEOUT_MS: u64 = 30_000;
/// Most bytes that wait to be sent: a full output, and one PDU.
const OUTPUT_BYTES_MAX: usize = (256 << 10) + (128 << 10) + 256;

/// The grants of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    command: u16,
    tag: u16,
    offset: u32,
    bytes: u32,
}

fn pool(world: &World, host: &str) -> (Host, Host, u32) {
    let (mut admin, controller) = world.admin(POOLS, host);
    let command = Command::new(kv::admin::CREATE_POOL, admin.id(), 0);
    let (made, _) = admin.ask(command, &CreatePool(PoolSpec::PERSISTENT).encode());
    assert_eq!(made.status, Status::SUCCESS);
    let io = world.io(POOLS, host, controller);
    (admin, io, made.result as u32)
}

/// Sends a command whose data follows when the target asks for it.
fn announce(host: &mut Host, command: Command) -> Vec<Answer> {
    let bytes = host.encode(&Pdu::Command(command, &[]));
    host.send(&bytes).unwrap()
}

/// Announces a value of `bytes`.
fn announce_value(io: &mut Host, pool: u32, index: u32, bytes: u32) -> Vec<Answer> {
    let mut command = kv::store(io.id(), pool, Key::new(1, index), bytes);
    command.data = DataPointer::transport(bytes);
    announce(io, command)
}

fn granted(command: u16, answers: &[Answer]) -> Option<Grant> {
    match answers {
        [Answer::Ready { tag, offset, bytes }] => {
            Some(Grant { command, tag: *tag, offset: *offset, bytes: *bytes })
        }
        [] => None,
        other => panic!("{other:?}"),
    }
}

/// The first grant for the value that was announced last.
fn ready(io: &Host, answers: &[Answer]) -> Grant {
    granted(io.last_id(), answers).expect("a grant")
}

/// The PDU with `bytes` of a grant from `at` on.
fn part(io: &Host, grant: Grant, at: u32, bytes: u32) -> Vec<u8> {
    let transfer = Transfer {
        command: grant.command,
        tag: grant.tag,
        offset: grant.offset + at,
        bytes,
        last: at + bytes == grant.bytes,
        success: false,
    };
    io.encode(&Pdu::HostData(transfer, &vec![7; bytes as usize]))
}

fn push(io: &mut Host, grant: Grant, at: u32, bytes: u32) -> Vec<Answer> {
    let pdu = part(io, grant, at, bytes);
    io.send(&pdu).unwrap()
}

/// Sends all of a grant.
fn push_all(io: &mut Host, grant: Grant) -> Vec<Answer> {
    let mut answers = Vec::new();
    for at in (0..grant.bytes).step_by(64 << 10) {
        answers = push(io, grant, at, (grant.bytes - at).min(64 << 10));
    }
    answers
}

fn status(answers: &[Answer]) -> Status {
    match answers {
        [Answer::Completed(completion)] => completion.status.code(),
        other => panic!("{other:?}"),
    }
}

fn used_pages(world: &World) -> u64 {
    world.store.statistics(world.alice).unwrap().used_pages
}

fn in_flight(world: &World) -> u64 {
    let its = world.store.in_flight_bytes_of(world.alice).unwrap();
    assert_eq!(world.store.in_flight_bytes(), its);
    its
}

#[test]
fn unfinished_stores_count_until_their_connection_ends() {
    let world = World::new();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let answers = announce_value(&mut io, pool, 1, 3 * MIB);
    let grant = ready(&io, &answers);
    assert_eq!((grant.offset, grant.bytes), (0, MIB));
    push_all(&mut io, grant);
    assert_eq!((in_flight(&world), used_pages(&world)), (3 * u64::from(MIB), 3 * 256));
    assert!(
        world.store.memory_bytes() > u64::from(MIB),
        "the data that has arrived lies in the store"
    );
    drop(io);
    assert_eq!((in_flight(&world), used_pages(&world)), (0, 0));
}

#[test]
fn a_store_waits_while_others_of_its_client_take_what_the_target_leaves() {
    let world = World::new();
    world.store.set_target(world.alice, 300).unwrap();
    let (mut admin, mut io, pool) = pool(&world, ALICE);
    let answers = announce_value(&mut io, pool, 1, MIB);
    let first = ready(&io, &answers);
    assert!(announce_value(&mut io, pool, 2, MIB).is_empty(), "it waits");
    let second = io.last_id();
    assert_eq!(io.connection.deadline_ms(0), Some(2), "it checks for room every 2 ms");
    // With the first value the client reaches its target, and nothing is in flight. So the second is refused before its
    // data is sent.
    let answers = push_all(&mut io, first);
    let [Answer::Completed(stored), Answer::Completed(refused)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!((stored.id, stored.status), (first.command, Status::SUCCESS));
    assert_eq!((refused.id, refused.status.code()), (second, Status::CAPACITY));
    assert_eq!(world.store.statistics(world.alice).unwrap().puts_refused_at_target, 1);
    let destroy = Command::new(kv::admin::DESTROY_POOL, admin.id(), pool);
    admin.ask(destroy, &[]);
    assert_eq!((used_pages(&world), in_flight(&world)), (0, 0));
}

/// Makes the connection check its deadlines.
fn poll(io: &mut Host, now_ms: u64) -> Vec<Answer> {
    io.now_ms = now_ms;
    io.connection.poll(now_ms, &mut io.out).unwrap();
    let mut answers = io.answers();
    answers.extend(io.send(&[]).unwrap());
    answers
}

#[test]
fn a_store_that_waited_goes_on_when_an_unfinished_one_is_gone() {
    let world = World::new();
    world.store.set_target(world.alice, 300).unwrap();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    // Another association of the same client.
    let (_other_admin, controller) = world.admin_with(InitRequest::default(), POOLS, ALICE, 2);
    let mut other = world.host();
    other.initialize(InitRequest::default());
    assert!(other.connect(POOLS, ALICE, 2, controller, 1).status.is_success());
    let answers = announce_value(&mut io, pool, 1, MIB);
    ready(&io, &answers);
    assert!(announce_value(&mut other, pool, 2, MIB).is_empty(), "it waits");
    // The wait is not the host's fault, so it has no deadline.
    assert!(poll(&mut other, 10 * TIMEOUT_MS).is_empty());
    drop(io);
    let answers = poll(&mut other, 10 * TIMEOUT_MS + 2);
    let grant = ready(&other, &answers);
    assert_eq!(status(&push_all(&mut other, grant)), Status::SUCCESS);
    assert_eq!(used_pages(&world), 256);
}

#[test]
fn a_host_that_leaves_data_unsent_is_cut_off_and_named() {
    let world = World::new();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let answers = announce_value(&mut io, pool, 1, MIB);
    let grant = ready(&io, &answers);
    push(&mut io, grant, 0, 1000);
    assert_eq!(io.connection.deadline_ms(0), Some(TIMEOUT_MS));
    io.now_ms = TIMEOUT_MS - 1;
    io.send(&[]).unwrap();
    // The bytes of other commands do not count as progress of this one, however many they are.
    for index in 0..32 {
        let store = kv::store(io.id(), pool, Key::new(9, index), 4096);
        assert_eq!(io.ask(store, &[1; 4096]).0.status, Status::SUCCESS);
    }
    io.now_ms = TIMEOUT_MS;
    match io.send(&[]) {
        Err(error @ Error::Stalled { .. }) => {
            let line = error.to_string();
            assert!(line.contains("client 'alice'"), "{line}");
            assert!(line.contains(&format!("{} bytes", MIB - 1000)), "{line}");
            assert!(line.contains("30 s"), "{line}");
        }
        other => panic!("{other:?}"),
    }
    drop(io);
    assert_eq!((in_flight(&world), used_pages(&world)), (0, 32));
}

#[test]
fn a_slow_host_is_served() {
    let world = World::new();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let answers = announce_value(&mut io, pool, 1, 2 * MIB);
    let mut grant = ready(&io, &answers);
    let last = loop {
        let mut answers = Vec::new();
        for at in (0..grant.bytes).step_by(64 << 10) {
            // 64 KiB just before the deadline, in pieces that end anywhere in a PDU.
            let pdu = part(&io, grant, at, 64 << 10);
            for piece in pdu.chunks(30_000) {
                io.now_ms += TIMEOUT_MS / 3 - 1;
                answers = io.send(piece).unwrap();
            }
        }
        match granted(grant.command, &answers) {
            Some(next) if next.offset < 2 * MIB => grant = next,
            _ => break answers,
        }
        if grant.offset + grant.bytes == 2 * MIB {
            break push_all(&mut io, grant);
        }
    };
    assert_eq!(status(&last), Status::SUCCESS);
    assert!(io.now_ms > 10 * TIMEOUT_MS);
}

#[test]
fn half_a_capsule_may_not_stay() {
    let world = World::new();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let mut command = kv::store(io.id(), pool, Key::new(1, 1), 4096);
    command.data = DataPointer::in_capsule(4096);
    let capsule = io.encode(&Pdu::Command(command, &[1; 4096]));
    assert!(io.send(&capsule[..2000]).unwrap().is_empty());
    io.now_ms = TIMEOUT_MS - 1;
    assert!(io.send(&capsule[2000..2001]).unwrap().is_empty(), "that is progress");
    io.now_ms = 2 * TIMEOUT_MS - 2;
    assert!(io.send(&[]).unwrap().is_empty());
    io.now_ms = 2 * TIMEOUT_MS - 1;
    assert!(matches!(io.send(&[]), Err(Error::Stalled { .. })));
    // Once the PDU is complete the command is executed, and the host owes nothing.
    let world = World::new();
    let (_admin, mut io, pool) = self::pool(&world, ALICE);
    let mut command = kv::store(io.id(), pool, Key::new(1, 1), 4096);
    command.data = DataPointer::in_capsule(4096);
    let capsule = io.encode(&Pdu::Command(command, &[1; 4096]));
    io.send(&capsule[..100]).unwrap();
    io.now_ms = TIMEOUT_MS - 1;
    assert_eq!(status(&io.send(&capsule[100..]).unwrap()), Status::SUCCESS);
    assert_eq!(io.connection.deadline_ms(io.now_ms), None);
    io.now_ms = 100 * TIMEOUT_MS;
    io.send(&[]).unwrap();
}

#[test]
fn a_busy_host_whose_bytes_always_end_within_a_pdu_is_no_stalled_one() {
    let world = World::new();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let mut stream = Vec::new();
    for _ in 0..200 {
        let mut command = kv::store(io.id(), pool, Key::new(1, 1), 4096);
        command.data = DataPointer::in_capsule(4096);
        stream.extend(io.encode(&Pdu::Command(command, &[1; 4096])));
    }
    let whole = stream.len() / 200;
    // First a PDU without its last byte. After that, each piece ends one byte into the next PDU.
    let mut at = whole - 1;
    io.send(&stream[..at]).unwrap();
    while at + whole < stream.len() {
        let end = (at / whole + 1) * whole + 1;
        io.now_ms += TIMEOUT_MS / 10;
        io.send(&stream[at..end]).unwrap();
        at = end;
    }
}

#[test]
fn a_configured_time_counts() {
    let world = World::with(Config { data_timeout_ms: 500, ..Config::default() });
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let answers = announce_value(&mut io, pool, 1, MIB);
    ready(&io, &answers);
    assert_eq!(io.connection.deadline_ms(0), Some(500));
}

#[test]
fn long_answers_are_sent_as_they_are_received() {
    let world = World::new();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let answers = announce_value(&mut io, pool, 1, 4 * MIB);
    let mut grant = ready(&io, &answers);
    loop {
        let answers = push_all(&mut io, grant);
        match granted(grant.command, if grant.offset == 3 * MIB { &[] } else { &answers }) {
            Some(next) => grant = next,
            None => break assert_eq!(status(&answers), Status::SUCCESS),
        }
    }
    let used = used_pages(&world);
    let retrieve = kv::retrieve(kv::io::RETRIEVE, io.id(), pool, Key::new(1, 1), 4 * MIB);
    let bytes = io.encode(&Pdu::Command(retrieve, &[]));
    assert_eq!(io.connection.receive(0, &bytes, &mut io.out).unwrap(), bytes.len());
    assert!(io.connection.sends_more());
    assert_eq!((in_flight(&world), used_pages(&world)), (4 * u64::from(MIB), used));
    // The value is sent although it is removed meanwhile.
    let pools = world.store.pools(world.alice).unwrap();
    let id = pools.iter().find(|its| its.number == pool).unwrap().id;
    assert!(world.store.flush(id, Key::new(1, 1)));
    let mut got = 0;
    loop {
        assert!(io.out.pending().len() <= OUTPUT_BYTES_MAX, "{}", io.out.pending().len());
        for answer in io.answers() {
            match answer {
                Answer::Data(transfer, data) => {
                    assert_eq!(transfer.offset, got);
                    assert!(data.iter().all(|&byte| byte == 7));
                    got += data.len() as u32;
                }
                Answer::Completed(completion) => {
                    assert_eq!(completion.result, 4 * u64::from(MIB));
                }
                other => panic!("{other:?}"),
            }
        }
        if !io.connection.sends_more() {
            break;
        }
        assert_eq!(io.connection.receive(0, &[], &mut io.out).unwrap(), 0);
    }
    assert_eq!(got, 4 * MIB);
    assert_eq!((in_flight(&world), used_pages(&world)), (0, 0));
}

#[test]
fn a_host_that_goes_in_the_middle_of_an_answer_leaves_nothing() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let create = Command::new(kv::admin::CREATE_POOL, admin.id(), 0);
    let pool = admin.ask(create, &CreatePool(PoolSpec::PERSISTENT).encode()).0.result as u32;
    let pools = world.store.pools(world.alice).unwrap();
    let id = pools.iter().find(|its| its.number == pool).unwrap().id;
    let key = Key::new(1, 1);
    assert_eq!(world.store.put(id, key, &vec![3; 4 << 20]), Put::Stored);
    for opcode in [kv::io::RETRIEVE, kv::io::TAKE] {
        assert!(world.store.exists(id, key));
        let mut io = world.io(POOLS, ALICE, controller);
        let get = kv::retrieve(opcode, io.id(), pool, key, 4 * MIB);
        let bytes = io.encode(&Pdu::Command(get, &[]));
        io.connection.receive(0, &bytes, &mut io.out).unwrap();
        assert_eq!(in_flight(&world), 4 << 20);
        drop(io);
        assert_eq!(in_flight(&world), 0);
    }
    assert!(!world.store.exists(id, key), "it was taken");
    assert_eq!(used_pages(&world), 0);
}

/// An admin and an I/O queue of Alice's block devices.
fn blocks(world: &World) -> (Host, Host) {
    let (admin, controller) = world.admin(BLOCKS, ALICE);
    (admin, world.io(BLOCKS, ALICE, controller))
}

fn block_command(world: &World, io: &mut Host, opcode: u8, first: u32, blocks: u32) -> Command {
    let number = world.store.pools(world.alice).unwrap();
    let number = number.iter().find(|its| its.id == world.device.pool()).unwrap().number;
    let mut command = Command::new(opcode, io.id(), number);
    command.cdw10 = first;
    command.cdw12 = blocks - 1;
    command.data = DataPointer::transport(blocks * 4096);
    command
}

#[test]
fn block_writes_go_to_the_device_as_they_come() {
    let world = World::new();
    let (_admin, mut io) = blocks(&world);
    let write = block_command(&world, &mut io, block::WRITE, 16, 64);
    let answers = announce(&mut io, write);
    let grant = ready(&io, &answers);
    assert_eq!(grant.bytes, 64 * 4096);
    push(&mut io, grant, 0, 32 * 4096);
    let mut data = vec![0; 48 * 4096];
    world.device.read(0, &mut data).unwrap();
    assert!(data[..16 * 4096].iter().all(|&byte| byte == 0));
    assert!(data[16 * 4096..].iter().all(|&byte| byte == 7), "the data that arrived is written");
    assert_eq!(in_flight(&world), 0, "nothing is held");
    assert_eq!(status(&push(&mut io, grant, 32 * 4096, 32 * 4096)), Status::SUCCESS);
    // Compare finds a difference near the end too, and the rest of the granted data is taken.
    let cases =
        [(16, Status::SUCCESS), (0, Status::COMPARE_FAILURE), (32, Status::COMPARE_FAILURE)];
    for (first, expected) in cases {
        let compare = block_command(&world, &mut io, block::COMPARE, first, 64);
        let answers = announce(&mut io, compare);
        let grant = ready(&io, &answers);
        assert_eq!(status(&push_all(&mut io, grant)), expected);
    }
}

#[test]
fn a_write_that_cannot_be_is_refused_before_its_data_comes() {
    let world = World::new();
    let (_admin, mut io) = blocks(&world);
    let beyond = block_command(&world, &mut io, block::WRITE, 250, 64);
    assert_eq!(status(&announce(&mut io, beyond)), Status::OUT_OF_RANGE);
    let mut short = block_command(&world, &mut io, block::WRITE, 0, 64);
    short.data = DataPointer::transport(63 * 4096);
    assert_eq!(status(&announce(&mut io, short)), Status::DATA_LENGTH);
    let read = block_command(&world, &mut io, block::READ, 250, 64);
    assert_eq!(status(&announce(&mut io, read)), Status::OUT_OF_RANGE);
    let mut strange = Command::new(block::DATASET_MANAGEMENT, io.id(), beyond.namespace);
    strange.data = DataPointer::transport(MIB);
    assert_eq!(status(&announce(&mut io, strange)), Status::DATA_LENGTH);
    // The queue still works.
    let write = block_command(&world, &mut io, block::WRITE, 0, 64);
    let answers = announce(&mut io, write);
    let grant = ready(&io, &answers);
    assert_eq!(status(&push_all(&mut io, grant)), Status::SUCCESS);
}

#[test]
fn a_store_whose_pool_goes_meanwhile_fails_and_leaves_nothing() {
    let world = World::new();
    let (mut admin, mut io, pool) = pool(&world, ALICE);
    let answers = announce_value(&mut io, pool, 1, MIB);
    let grant = ready(&io, &answers);
    push(&mut io, grant, 0, 64 << 10);
    let destroy = Command::new(kv::admin::DESTROY_POOL, admin.id(), pool);
    assert!(admin.ask(destroy, &[]).0.status.is_success());
    for at in (64 << 10..MIB).step_by(64 << 10) {
        let answers = push(&mut io, grant, at, 64 << 10);
        if at + (64 << 10) == MIB {
            assert_eq!(status(&answers), Status::INVALID_NAMESPACE);
        }
    }
    assert_eq!((in_flight(&world), used_pages(&world)), (0, 0));
}

#[test]
fn a_store_without_memory_is_refused_and_others_go_on() {
    // The store has 64 MiB, a part of which is its reserve: 20 values of 4 MiB are too many.
    let world = World::new();
    let (_admin, mut io, pool) = pool(&world, ALICE);
    let (mut last, mut stored) = (Status::SUCCESS, 0);
    for index in 0..20 {
        let answers = announce_value(&mut io, pool, index, 4 * MIB);
        let mut grant = ready(&io, &answers);
        last = loop {
            let answers = push_all(&mut io, grant);
            assert!(world.store.memory_bytes() <= 64 << 20);
            match &answers[..] {
                [Answer::Ready { .. }] => grant = granted(grant.command, &answers).unwrap(),
                _ => break status(&answers),
            }
        };
        if last != Status::SUCCESS {
            break;
        }
        stored += 1;
    }
    assert_eq!(last, Status::CAPACITY);
    assert!((13..=15).contains(&stored), "{stored} values of 4 MiB");
    assert_eq!((in_flight(&world), used_pages(&world)), (0, stored * 1024));
    let (_bobs_admin, mut bobs, bobs_pool) = self::pool(&world, BOB);
    let key = Key::new(1, 1);
    let small = kv::store(bobs.id(), bobs_pool, key, 4096);
    assert_eq!(bobs.ask(small, &[1; 4096]).0.status, Status::SUCCESS);
}
