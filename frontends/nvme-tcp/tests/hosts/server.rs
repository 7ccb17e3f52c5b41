//! The server with its threads, over loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use spillway_nvme_tcp::{Config, Server};
use spillway_test_support::wait::{until, until_equal};
use spillway_types::{Key, PoolSpec, Put};
use spillway_wire::fabrics::{
    ANY_CONTROLLER, Connect, ConnectData, ConnectResult, DISCOVERY_NQN, Fabrics, property,
};
use spillway_wire::kv;
use spillway_wire::nvme::{Command, Completion, DataPointer, Status};
use spillway_wire::nvme_tcp::{Framing, InitRequest, Pdu, Transfer, decode};

use crate::support::{ALICE, BOB, POOLS, World};

fn started(world: &World) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, Arc::clone(&world.target), None).unwrap()
}

/// A host over a socket, one command at a time.
struct Socket {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Socket {
    fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut socket = Self { stream, input: Vec::new() };
        socket.send(&Pdu::InitRequest(InitRequest::default()));
        socket.read(|pdu| matches!(pdu, Pdu::InitResponse(_)).then_some(()));
        socket
    }

    fn queue(server: &Server, host: &str, number: u16, controller: u16) -> (Self, u16) {
        Self::queue_of(server, host, POOLS, (number, controller), 0)
    }

    fn queue_of(
        server: &Server,
        host: &str,
        subsystem: &str,
        (number, controller): (u16, u16),
        keep_alive_ms: u32,
    ) -> (Self, u16) {
        let mut socket = Self::open(server);
        let connect = Connect {
            format: 0,
            queue: number,
            queue_entries: 127,
            attributes: Connect::NO_FLOW_CONTROL,
            keep_alive_ms,
        };
        let data = ConnectData { host_id: [3; 16], controller, subsystem, host };
        let command = Fabrics::Connect(connect).encode(1);
        let completion = socket.ask(command, &data.encode().unwrap());
        assert_eq!(completion.status, Status::SUCCESS);
        (socket, ConnectResult::decode(completion.result).controller)
    }

    /// An admin queue and an I/O queue.
    fn association(server: &Server, host: &str) -> (Self, Self) {
        let (mut admin, controller) = Self::queue(server, host, 0, ANY_CONTROLLER);
        let set = Fabrics::PropertySet { offset: property::CC, wide: false, value: 0x0046_0001 };
        assert!(admin.ask(set.encode(2), &[]).status.is_success());
        (admin, Self::queue(server, host, 1, controller).0)
    }

    fn send(&mut self, pdu: &Pdu<'_>) {
        let mut bytes = vec![0; 1 << 16];
        let length = pdu.encode(Framing::default(), &mut bytes).unwrap();
        self.stream.write_all(&bytes[..length]).unwrap();
    }

    /// Reads PDUs until one answers.
    fn read<T>(&mut self, mut answer: impl FnMut(Pdu<'_>) -> Option<T>) -> T {
        loop {
            while let Some((pdu, taken)) = decode(&self.input, Framing::default(), 1 << 20).unwrap()
            {
                let answered = answer(pdu);
                self.input.drain(..taken);
                if let Some(answered) = answered {
                    return answered;
                }
            }
            let mut bytes = [0; 1 << 16];
            let length = self.stream.read(&mut bytes).unwrap();
            assert_ne!(length, 0, "the target closed the connection");
            self.input.extend_from_slice(&bytes[..length]);
        }
    }

    fn ask(&mut self, mut command: Command, data: &[u8]) -> Completion {
        if !data.is_empty() {
            command.data = DataPointer::in_capsule(data.len() as u32);
        }
        self.send(&Pdu::Command(command, data));
        self.read(|pdu| if let Pdu::Response(completion) = pdu { Some(completion) } else { None })
    }
}

fn pool(admin: &mut Socket) -> u32 {
    let create = Command::new(kv::admin::CREATE_POOL, 5, 0);
    let made = admin.ask(create, &kv::CreatePool(PoolSpec::PERSISTENT).encode());
    assert!(made.status.is_success());
    made.result as u32
}

/// The processors that the threads of connections may use: a line of each `/proc/self/task/*/status`.
fn processors_allowed() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let allowed = |task: std::fs::DirEntry| {
        // The thread may have ended.
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed:"))?;
        status.starts_with("Name:\tnvme-tcp-host\n").then(|| allowed.to_owned())
    };
    tasks.filter_map(allowed).collect()
}

#[test]
fn a_thread_that_follows_its_packets_stays_free_to_move() {
    let world = World::new();
    let server = started(&world);
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let all = sched_getaffinity(None).unwrap();
    let (mut admin, _io) = Socket::association(&server, ALICE);
    // Over loopback, packets arrive on the processor that sends them.
    for processor in (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor)) {
        let mut alone = CpuSet::new();
        alone.set(processor);
        sched_setaffinity(None, &alone).unwrap();
        for _ in 0..200 {
            let get = Fabrics::PropertyGet { offset: property::CSTS, wide: false };
            assert!(admin.ask(get.encode(7), &[]).status.is_success());
        }
    }
    sched_setaffinity(None, &all).unwrap();
    // A thread of another test may just be moving.
    until("all threads to be free", || {
        let allowed = processors_allowed();
        assert!(!allowed.is_empty());
        allowed.iter().all(|allowed| own.contains(&format!("\n{allowed}\n")))
    });
}

#[test]
fn values_pass_and_a_stop_ends_all_connections() {
    let world = World::new();
    let server = started(&world);
    let (mut admin, mut io) = Socket::association(&server, ALICE);
    let pool = pool(&mut admin);
    // Many commands in one write.
    for id in 0..100 {
        let mut command = kv::store(id, pool, Key::new(1, id.into()), 4096);
        command.data = DataPointer::in_capsule(4096);
        io.send(&Pdu::Command(command, &[id as u8; 4096]));
    }
    for id in 0..100 {
        let completion = io.read(|pdu| if let Pdu::Response(c) = pdu { Some(c) } else { None });
        assert_eq!((completion.id, completion.status), (id, Status::SUCCESS));
    }
    assert_eq!(world.store.statistics(world.alice).unwrap().puts_stored, 100);
    assert_eq!(server.connections(), 2);
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(io.stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn an_admin_queue_that_goes_takes_its_io_queues_along() {
    let world = World::new();
    let server = started(&world);
    let (admin, mut io) = Socket::association(&server, ALICE);
    drop(admin);
    assert_eq!(io.stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_host_that_receives_nothing_costs_itself_only() {
    let world = World::with(Config { send_timeout_ms: 300, ..Config::default() });
    let server = started(&world);
    let (mut stuck_admin, mut stuck) = Socket::association(&server, ALICE);
    let stuck_pool = pool(&mut stuck_admin);
    let key = Key::new(1, 1);
    let stored = stuck.ask(kv::store(1, stuck_pool, key, 4096), &[1; 4096]);
    assert!(stored.status.is_success());
    // The host sends commands and receives no answers.
    let retrieve = kv::retrieve(kv::io::RETRIEVE, 2, stuck_pool, key, 4096);
    let mut bytes = [0; 128];
    let length = Pdu::Command(retrieve, &[]).encode(Framing::default(), &mut bytes).unwrap();
    let flood = bytes[..length].repeat(1000);
    let flooder = std::thread::spawn(move || while stuck.stream.write_all(&flood).is_ok() {});
    let (mut admin, mut io) = Socket::association(&server, BOB);
    let bobs = pool(&mut admin);
    for id in 0..200 {
        let stored = io.ask(kv::store(id, bobs, Key::new(2, id.into()), 4096), &[2; 4096]);
        assert!(stored.status.is_success());
    }
    flooder.join().unwrap();
    until_equal("connections without the stuck one", 3, || server.connections());
}

#[test]
fn a_host_that_stops_sending_is_cut_off_and_a_slow_one_is_not() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    const VALUE_BYTES: u32 = 192 << 10;
    let data_timeout_ms = TIMEOUT.as_millis() as u64;
    let world = World::with(Config { data_timeout_ms, ..Config::default() });
    let server = started(&world);
    let (mut admin, mut stuck) = Socket::association(&server, ALICE);
    let pool = pool(&mut admin);
    let (mut bobs_admin, mut slow) = Socket::association(&server, BOB);
    let bobs = self::pool(&mut bobs_admin);
    let announce = |io: &mut Socket, pool| {
        let mut store = kv::store(9, pool, Key::new(1, 1), VALUE_BYTES);
        store.data = DataPointer::transport(VALUE_BYTES);
        io.send(&Pdu::Command(store, &[]));
        io.read(|pdu| if let Pdu::ReadyToTransfer(ready) = pdu { Some(ready) } else { None })
    };
    announce(&mut stuck, pool);
    let ready = announce(&mut slow, bobs);
    let bytes = 32 << 10;
    for offset in (0..VALUE_BYTES).step_by(bytes) {
        // 64 KiB in half of the timeout each, which together takes longer than the timeout. The machine may be busy for
        // the other half.
        std::thread::sleep(TIMEOUT / 4);
        let last = offset + bytes as u32 == VALUE_BYTES;
        let bytes = bytes as u32;
        let part = Transfer { command: 9, tag: ready.tag, offset, bytes, last, success: false };
        slow.send(&Pdu::HostData(part, &vec![5; bytes as usize]));
    }
    let done = slow.read(|pdu| if let Pdu::Response(done) = pdu { Some(done) } else { None });
    assert_eq!(done.status, Status::SUCCESS);
    assert_eq!(stuck.stream.read(&mut [0; 1]).unwrap_or(0), 0, "the connection is closed");
    assert_eq!(world.store.in_flight_bytes(), 0);
    assert_eq!(world.store.statistics(world.alice).unwrap().used_pages, 0);
    assert_eq!(server.connections(), 3, "the admin queue's connection stays");
}

#[test]
fn long_answers_pass_to_a_host_that_reads_slowly() {
    let world = World::new();
    let server = started(&world);
    let (mut admin, mut io) = Socket::association(&server, ALICE);
    let number = pool(&mut admin);
    let pools = world.store.pools(world.alice).unwrap();
    let id = pools.iter().find(|its| its.number == number).unwrap().id;
    let value: Vec<u8> = (0..3_000_000).map(|at| (at * 7 + at / 251) as u8).collect();
    assert_eq!(world.store.put(id, Key::new(1, 1), &value), Put::Stored);
    let retrieve = kv::retrieve(kv::io::RETRIEVE, 2, number, Key::new(1, 1), 4 << 20);
    io.send(&Pdu::Command(retrieve, &[]));
    std::thread::sleep(Duration::from_millis(200));
    let mut got = Vec::new();
    let done = io.read(|pdu| match pdu {
        Pdu::ControllerData(_, data) => {
            got.extend_from_slice(data);
            None
        }
        Pdu::Response(done) => Some(done),
        other => panic!("{other:?}"),
    });
    assert_eq!((done.status, done.result), (Status::SUCCESS, value.len() as u64));
    assert!(got == value);
    until_equal("bytes in flight", 0, || world.store.in_flight_bytes());
}

#[test]
fn no_more_connections_than_there_may_be() {
    let world = World::with(Config { connections_max: 2, ..Config::default() });
    let server = started(&world);
    let _held = Socket::association(&server, ALICE);
    let mut third = TcpStream::connect(server.address()).unwrap();
    third.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(third.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn hosts_that_prove_nothing_keep_nobody_out() {
    // The server allows 16 connections of hosts that are not admitted yet, 4 of them from one address.
    let world = World::with(Config { connections_max: 64, ..Config::default() });
    let server = started(&world);
    let (_admin, mut io) = Socket::association(&server, ALICE);
    let mut held: Vec<_> = (0..100)
        .map(|_| {
            let queue = (0, ANY_CONTROLLER);
            Socket::queue_of(&server, BOB, DISCOVERY_NQN, queue, u32::MAX).0
        })
        .collect();
    let _idle: Vec<_> = (0..100).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let _late = Socket::association(&server, BOB);
    for socket in &mut held {
        assert_eq!(socket.stream.read(&mut [0; 1]).unwrap_or(0), 0, "each gave way to a newer one");
    }
    let exist = kv::with_key(kv::io::EXIST, 1, 1, Key::new(1, 1));
    assert_ne!(io.ask(exist, &[]).status, Status::SUCCESS, "there is no pool, but an answer");
}
