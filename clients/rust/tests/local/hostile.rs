//! A hostile peer that writes anything to the region and the socket, while an honest client works.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, recvmsg, send,
    sendmsg, socket_with,
};
use spillway_client::{Get, Key, Pool, PoolSpec, Put, Store};
use spillway_ring::{Config, Region};
use spillway_test_support::random::Random;
use spillway_test_support::wait::{until, until_equal};
use spillway_wire::kv;
use spillway_wire::nvme::{Command, Status};
use spillway_wire::ring::{Geometry, Hello, VERSION, WAKE, Welcome, data};

use crate::daemon::{Daemon, LIMITS};

/// A connection that bypasses the library.
struct Raw {
    socket: OwnedFd,
    region: Region,
    memfd: OwnedFd,
    submitted: u32,
}

fn connect(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

impl Raw {
    fn open(path: &Path) -> Self {
        let socket = connect(path);
        let hello = Hello { version: VERSION, depth: 64, data_bytes: 1 << 20 };
        send(&socket, &hello.encode(), SendFlags::NOSIGNAL).unwrap();
        let mut bytes = [0; Welcome::BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let Some(RecvAncillaryMessage::ScmRights(mut files)) = control.drain().next() else {
            panic!("no descriptor")
        };
        let memfd = files.next().unwrap();
        let Ok(Welcome::Granted { geometry, .. }) = Welcome::decode(&bytes) else {
            panic!("not welcome")
        };
        let region = Region::map(&memfd, geometry).unwrap();
        Self { socket, region, memfd, submitted: 0 }
    }

    fn wake(&self) {
        let _ = send(&self.socket, &[WAKE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Submits a command and returns the status of its completion.
    fn run(&mut self, command: &Command) -> Status {
        self.region.set_command(self.submitted, command);
        let count = self.submitted;
        self.submitted += 1;
        self.region.submitted().store(self.submitted, Ordering::SeqCst);
        self.wake();
        loop {
            if let Some(completion) = self.region.completion(count) {
                return completion.status.code();
            }
            std::thread::yield_now();
        }
    }

    /// Waits until the server has closed the connection.
    fn wait_for_the_end(&self) {
        let mut bytes = [0; 16];
        while !matches!(recv(&self.socket, &mut bytes, RecvFlags::empty()), Ok((_, 0)) | Err(_)) {}
    }
}

/// Operations of an honest client during two seconds of an attack.
const HONEST_MIN: u64 = 1000;

/// Runs an honest client during `attack`, and checks every byte. Returns the number of its operations.
fn beside_an_honest_client(daemon: &Daemon, attack: impl FnOnce()) -> u64 {
    let ring = daemon.connect(1);
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    let (done, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut round, mut value) = (0_u64, [0; 4096]);
            while !done.load(Ordering::Relaxed) {
                round += 1;
                let (key, byte) = (Key::new(round % 3, (round % 1000) as u32), round as u8);
                let mut page = [byte; 4096];
                page[..8].copy_from_slice(&round.to_ne_bytes());
                assert_eq!(ring.put(pool, key, &page).unwrap(), Put::Stored);
                let start = Instant::now();
                assert_eq!(ring.get(pool, key, &mut value).unwrap(), Get::Hit(4096));
                assert!(start.elapsed() < Duration::from_secs(5), "an honest get had to wait");
                assert!(value == page, "another value than was put");
                operations.fetch_add(2, Ordering::Relaxed);
            }
        });
        // If the attack panics, the honest client must end too: the scope waits for it.
        let _end = EndOnDrop(&done);
        attack();
    });
    assert_eq!(ring.statistics().unwrap().puts_stored, operations.load(Ordering::Relaxed) / 2);
    operations.load(Ordering::Relaxed)
}

/// Sets its flag when dropped, also by a panic.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until the attackers' connections have ended with all their resources.
fn wait_until_inside(daemon: &Daemon, connections: u32) {
    until_equal("the connections inside", connections, || daemon.inside());
}

/// Waits until the number of connections is as wanted.
fn wait_for(daemon: &Daemon, wanted: impl Fn(u32) -> bool) {
    until("connections to come or go", || wanted(daemon.inside()));
}

#[test]
fn bad_commands_are_answered_as_the_standard_says() {
    let daemon = Daemon::for_many(LIMITS);
    let mut raw = Raw::open(&daemon.path);
    let mut spec = Command::new(kv::admin::CREATE_POOL, 1, 0);
    spec.data = data(0, kv::CreatePool::BYTES as u32);
    raw.region.write(0, &kv::CreatePool(PoolSpec::PERSISTENT).encode());
    assert_eq!(raw.run(&spec), Status::SUCCESS);

    let key = Key::new(1, 1);
    let store = |offset: u64, bytes: u32| {
        let mut command = kv::store(1, 1, key, bytes);
        command.data.kind = 1;
        command.data.address = offset;
        command
    };
    assert_eq!(raw.run(&store(0, 4096)), Status::SUCCESS);
    for (offset, bytes) in [
        (1 << 20, 1),
        ((1 << 20) - 4095, 4096),
        (u64::MAX, 4096),
        (u64::MAX - 4095, 4096),
        (0, (1 << 20) + 1),
        (0, u32::MAX),
        (1 << 40, u32::MAX),
    ] {
        assert_eq!(raw.run(&store(offset, bytes)), Status::DESCRIPTOR_OFFSET, "{offset} {bytes}");
    }
    // A refused put leaves no value under its key.
    assert_eq!(raw.run(&store(0, 0)), Status::VALUE_SIZE);
    assert_eq!(raw.run(&kv::with_key(kv::io::EXIST, 1, 1, key)), Status::KEY_NOT_FOUND);
    let wrong = |change: &dyn Fn(&mut Command)| {
        let mut command = store(0, 4096);
        change(&mut command);
        command
    };
    assert_eq!(raw.run(&wrong(&|c| c.cdw10 = 4095)), Status::DATA_LENGTH);
    assert_eq!(raw.run(&wrong(&|c| c.data.kind = 0)), Status::DESCRIPTOR_TYPE);
    assert_eq!(raw.run(&wrong(&|c| c.flags = 0)), Status::INVALID_FIELD);
    assert_eq!(raw.run(&wrong(&|c| c.opcode = 0x7f)), Status::INVALID_OPCODE);
    assert_eq!(raw.run(&wrong(&|c| c.opcode = 0x20)), Status::INVALID_OPCODE);
    assert_eq!(raw.run(&wrong(&|c| c.cdw11 = 16)), Status::KEY_SIZE);
    assert_eq!(raw.run(&wrong(&|c| c.cdw15 = 1)), Status::INVALID_FIELD);
    assert_eq!(raw.run(&wrong(&|c| c.namespace = 2)), Status::INVALID_NAMESPACE);
    assert_eq!(raw.run(&wrong(&|c| c.namespace = u32::MAX)), Status::INVALID_NAMESPACE);
    // A value of a page does not fit into a buffer of half a page.
    assert_eq!(raw.run(&store(0, 4096)), Status::SUCCESS);
    let mut get = kv::retrieve(kv::io::RETRIEVE, 1, 1, key, 2048);
    get.data = data(0, 2048);
    raw.region.write(0, &[9; 4096]);
    assert_eq!(raw.run(&get), Status::SUCCESS);
    let mut page = [0; 4096];
    raw.region.read(0, &mut page);
    assert_eq!(page, [9; 4096], "nothing was written");
}

#[test]
fn what_is_no_hello_ends_its_own_connection_only() {
    let daemon = Daemon::for_many(LIMITS);
    let hello = Hello { version: VERSION, depth: 64, data_bytes: 1 << 20 }.encode();
    beside_an_honest_client(&daemon, || {
        for message in [&b"x"[..], &[0; 16], &hello[..15], &[hello.as_slice(), b"x"].concat()] {
            let socket = connect(&daemon.path);
            send(&socket, message, SendFlags::NOSIGNAL).unwrap();
            let mut bytes = [0; 64];
            assert!(matches!(recv(&socket, &mut bytes, RecvFlags::empty()), Ok((_, 0)) | Err(_)));
        }
        let mut other = Hello { version: VERSION + 1, depth: 64, data_bytes: 1 << 20 };
        for wanted in [other, {
            other.version = VERSION;
            other.depth = 0;
            other
        }] {
            let socket = connect(&daemon.path);
            send(&socket, &wanted.encode(), SendFlags::NOSIGNAL).unwrap();
            let mut bytes = [0; Welcome::BYTES];
            recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
            assert!(matches!(Welcome::decode(&bytes), Ok(Welcome::Refused(_))));
        }
        // These connect without a hello; some close at once, some stay.
        let silent: Vec<OwnedFd> = (0..20).map(|_| connect(&daemon.path)).collect();
        drop(silent);
        wait_until_inside(&daemon, 1);
    });
}

#[test]
fn who_says_nothing_is_sent_away() {
    let hello_timeout = Duration::from_millis(300);
    let daemon = Daemon::with(LIMITS, Config { hello_timeout, ..Config::default() });
    let ring = daemon.connect(1);
    let (began, silent) = (Instant::now(), [(); 3].map(|()| connect(&daemon.path)));
    for socket in &silent {
        // The other end's limit for this test, far above the server's.
        set_socket_timeout(socket, Timeout::Recv, Some(Duration::from_secs(4))).unwrap();
        assert_eq!(recv(socket, &mut [0; 64], RecvFlags::empty()).unwrap().1, 0, "it is closed");
    }
    assert!(began.elapsed() >= hello_timeout);
    until_equal("the silent ones to be counted", 3, || daemon.late());
    // The time limit is only for the hello.
    std::thread::sleep(hello_timeout * 2);
    let pool = ring.open_pool(PoolSpec::EPHEMERAL).unwrap();
    assert_eq!(ring.put(pool, Key::new(1, 1), &[1; 4096]).unwrap(), Put::Stored);
    assert_eq!(daemon.late(), 3);
}

#[test]
fn a_wild_doorbell_ends_its_own_connection_only() {
    let daemon = Daemon::for_many(LIMITS);
    beside_an_honest_client(&daemon, || {
        for count in [65, 1 << 31, u32::MAX] {
            let raw = Raw::open(&daemon.path);
            raw.region.submitted().store(count, Ordering::SeqCst);
            raw.wake();
            raw.wait_for_the_end();
        }
        wait_until_inside(&daemon, 1);
    });
}

#[test]
fn commands_and_values_that_change_in_flight_spoil_their_own_pool_only() {
    let daemon = Daemon::for_many(LIMITS);
    let honest = beside_an_honest_client(&daemon, || {
        let mut raw = Raw::open(&daemon.path);
        let mut spec = Command::new(kv::admin::CREATE_POOL, 1, 0);
        spec.data = data(0, kv::CreatePool::BYTES as u32);
        raw.region.write(0, &kv::CreatePool(PoolSpec::PERSISTENT).encode());
        assert_eq!(raw.run(&spec), Status::SUCCESS);
        let done = AtomicBool::new(false);
        let first = raw.submitted;
        std::thread::scope(|scope| {
            // One thread rewrites the commands and their values, another rings the doorbell.
            scope.spawn(|| {
                let mut random = Random::new(1);
                while !done.load(Ordering::Relaxed) {
                    let number = random.next();
                    let opcodes = [0x01, 0x02, 0x10, 0x14, 0x06, 0xc0, 0xc2, 0xc1, 0xca, 0xce];
                    let opcode = opcodes[number as usize % opcodes.len()];
                    let mut command = Command::new(opcode, number as u16, (number >> 8) as u32 % 4);
                    kv::set_key(&mut command, Key::new(number >> 60, (number >> 40) as u32 % 64));
                    command.data.kind = 1;
                    command.data.bytes = random.below(9000) as u32;
                    command.data.address = random.below(1 << 20);
                    command.cdw10 = command.data.bytes;
                    raw.region.set_command(number as u32 >> 3, &command);
                    raw.region.write((number % (1 << 19)) as usize, &number.to_ne_bytes());
                }
            });
            let mut submitted = first;
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(2) {
                submitted += 1;
                raw.region.submitted().store(submitted, Ordering::SeqCst);
                raw.wake();
                // The completion may already be overwritten, so the wait must be bounded.
                for _ in 0..200 {
                    core::hint::spin_loop();
                }
                if submitted.is_multiple_of(32) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(raw);
        wait_until_inside(&daemon, 1);
    });
    assert!(honest > HONEST_MIN, "{honest} operations");
}

#[test]
fn random_bytes_over_the_whole_region_harm_nobody_else() {
    let daemon = Daemon::for_many(LIMITS);
    let honest = beside_an_honest_client(&daemon, || {
        let start = Instant::now();
        let mut random = Random::new(2);
        while start.elapsed() < Duration::from_secs(2) {
            // On a busy machine the earlier connections may still be closing.
            wait_for(&daemon, |inside| inside < LIMITS.connections_max / 2);
            let raw = Raw::open(&daemon.path);
            // Map everything: control words, queues, data.
            let all = Geometry::new(1, raw.region.geometry().data_bytes()).unwrap();
            let view = Region::map(&raw.memfd, all).unwrap();
            for _ in 0..200 {
                let count = random.next() as u32;
                let mut command = Command::decode(&std::array::from_fn(|_| random.next() as u8));
                command.flags = Command::SGL;
                raw.region.set_command(count, &command);
                view.write(random.below(4096) as usize, &random.next().to_ne_bytes());
                let asleep = random.next() as u32;
                raw.region.server_asleep().store(asleep, Ordering::Relaxed);
                raw.region.client_asleep().store(asleep, Ordering::Relaxed);
                raw.region.submitted().fetch_add(random.below(3) as u32, Ordering::SeqCst);
                raw.wake();
            }
            raw.region.submitted().store(random.next() as u32, Ordering::SeqCst);
            raw.wake();
        }
        wait_until_inside(&daemon, 1);
    });
    assert!(honest > HONEST_MIN, "{honest} operations");
}

#[test]
fn the_region_can_be_neither_cut_nor_sealed_by_its_peer() {
    let daemon = Daemon::for_many(LIMITS);
    beside_an_honest_client(&daemon, || {
        let mut raw = Raw::open(&daemon.path);
        assert!(rustix::fs::ftruncate(&raw.memfd, 0).is_err());
        assert!(rustix::fs::ftruncate(&raw.memfd, 1 << 30).is_err());
        assert!(rustix::fs::fcntl_add_seals(&raw.memfd, rustix::fs::SealFlags::WRITE).is_err());
        // Discarded memory reads as zeros: opcode 0 is invalid.
        raw.region.discard();
        assert_eq!(raw.run(&Command::new(0, 1, 1)), Status::INVALID_OPCODE);
    });
}

#[test]
fn a_stuffed_socket_and_a_flood_of_descriptors_cost_the_sender_only() {
    let daemon = Daemon::for_many(LIMITS);
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    beside_an_honest_client(&daemon, || {
        let before = open_files();
        for message in [&[WAKE][..], b"garbage"] {
            let raw = Raw::open(&daemon.path);
            for _ in 0..10_000 {
                if send(&raw.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {
                    std::thread::yield_now();
                }
            }
        }
        let raw = Raw::open(&daemon.path);
        for _ in 0..2000 {
            let files = [raw.memfd.as_fd(); 16];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = sendmsg(&raw.socket, &[IoSlice::new(&[WAKE])], &mut control, flags);
        }
        drop(raw);
        wait_until_inside(&daemon, 1);
        // Other tests of this process open and close files meanwhile: a few, not 32,000.
        assert!(open_files() < before + 200, "{} files, {before} before", open_files());
    });
}

#[test]
fn a_peer_that_never_reads_blocks_nobody() {
    let daemon = Daemon::for_many(LIMITS);
    beside_an_honest_client(&daemon, || {
        let raw = Raw::open(&daemon.path);
        let pool = Pool(1);
        for count in 1..=20_000_u32 {
            // The client claims to sleep each time, so the server tries to wake it until the socket is full, and must
            // keep serving.
            let command = kv::with_key(kv::io::EXIST, 1, pool.0 as u32, Key::new(1, 1));
            raw.region.set_command(count - 1, &command);
            raw.region.client_asleep().store(1, Ordering::SeqCst);
            raw.region.submitted().store(count, Ordering::SeqCst);
            raw.wake();
            let start = Instant::now();
            while raw.region.completion(count - 1).is_none() {
                assert!(start.elapsed() < Duration::from_secs(10), "stuck at command {count}");
                std::thread::yield_now();
            }
        }
    });
}
