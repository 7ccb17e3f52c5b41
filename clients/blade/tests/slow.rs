//! A blade over the ring that answers late or ends in the middle. Other callers do not wait for its answers, and no
//! answer is mistaken for another.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{available_parallelism, scope, sleep, spawn};
use std::time::Duration;

use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, accept_with,
    recv, send, sendmsg,
};
use rustix::time::{ClockId, clock_gettime};
use spillway_blade::carrier;
use spillway_client::{Error, Pool, Ring, RingOptions, Store as _};
use spillway_ring::{Region, Server};
use spillway_test_support::wait::within;
use spillway_tiers::blade::{Carried, Carrier, Parcel, Wanted};
use spillway_types::{Key, PAGE_BYTES, PoolSpec};
use spillway_wire::kv::{PoolEntry, admin, io, key};
use spillway_wire::nvme::{Command, Completion, Status};
use spillway_wire::ring::{Geometry, Hello, WAKE, Welcome};

const IDENTITY: u128 = 0x51_0e;
/// Longer than any test takes, unless a call waits for a held command.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Commands that the blade holds back, by opcode.
#[derive(Default)]
struct HeldCommands {
    opcodes: Mutex<Vec<u8>>,
    changed: Condvar,
    /// Number of connections with a held command.
    waiting: AtomicU32,
    /// Time that each answer takes.
    delay: Duration,
    /// Number of values to return before a connection ends; 0 for no limit.
    values_left: AtomicU32,
}

impl HeldCommands {
    fn set(&self, opcodes: &[u8]) {
        *self.opcodes.lock().unwrap() = opcodes.to_vec();
        self.changed.notify_all();
    }

    fn pass(&self, opcode: u8) {
        sleep(self.delay);
        let mut opcodes = self.opcodes.lock().unwrap();
        let waits = opcodes.contains(&opcode);
        self.waiting.fetch_add(u32::from(waits), Ordering::SeqCst);
        while opcodes.contains(&opcode) {
            opcodes = self.changed.wait(opcodes).unwrap();
        }
        self.waiting.fetch_sub(u32::from(waits), Ordering::SeqCst);
    }

    /// Whether the connection ends after this command.
    fn ends_with(&self, opcode: u8) -> bool {
        let less = |left: u32| left.checked_sub(1);
        let order = Ordering::SeqCst;
        opcode == io::RETRIEVE && self.values_left.fetch_update(order, order, less) == Ok(1)
    }

    fn wait_for(&self, waiting: u32) {
        let are_there = || self.waiting.load(Ordering::SeqCst) == waiting;
        within(TIMEOUT, "connections to wait", are_there);
    }
}

/// Answers every command with success. Each byte of a value is its key's index.
fn serve(listener: OwnedFd, held: Arc<HeldCommands>) {
    spawn(move || {
        while let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) {
            let held = held.clone();
            spawn(move || attend(&socket, &held));
        }
    });
}

fn attend(socket: &OwnedFd, held: &HeldCommands) {
    let mut bytes = [0; Hello::BYTES];
    recv(socket, &mut bytes, RecvFlags::empty()).unwrap();
    let hello = Hello::decode(&bytes).unwrap();
    let geometry = Geometry::new(hello.depth, hello.data_bytes).unwrap();
    let (region, file) = Region::create(geometry).unwrap();
    let welcome = Welcome::Granted { geometry, instance: 1 }.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(socket, &[IoSlice::new(&welcome)], &mut control, SendFlags::empty()).unwrap();
    let mut taken = 0;
    loop {
        region.server_asleep().store(1, Ordering::SeqCst);
        while region.submitted().load(Ordering::SeqCst) == taken {
            let mut byte = [0; 1];
            if !matches!(recv(socket, &mut byte, RecvFlags::empty()), Ok((_, 1))) {
                return;
            }
            region.server_asleep().store(1, Ordering::SeqCst);
        }
        let command = region.command(taken);
        held.pass(command.opcode);
        let result = answer(&region, &command);
        let (id, status) = (command.id, Status::SUCCESS);
        let completion = Completion { result, queue_head: 0, queue: 1, id, status, phase: false };
        region.complete(taken, completion);
        taken += 1;
        if held.ends_with(command.opcode) {
            return;
        }
        if region.client_asleep().swap(0, Ordering::SeqCst) != 0 {
            let _ = send(socket, &[WAKE], SendFlags::NOSIGNAL);
        }
    }
}

fn answer(region: &Region, command: &Command) -> u64 {
    match command.opcode {
        admin::LIST_POOLS => {
            let (spec, identity) = (PoolSpec::PERSISTENT, IDENTITY);
            let entry = PoolEntry { number: 1, spec, pages: 0, identity };
            region.write(command.data.address as usize, &entry.encode());
            1
        }
        io::RETRIEVE => {
            let value = [key(command).unwrap().index as u8; PAGE_BYTES];
            let bytes = command.data.bytes;
            region.write(command.data.address as usize, &value[..bytes as usize]);
            bytes.into()
        }
        _ => 0,
    }
}

fn slow_blade(path: &Path, delay: Duration) -> Arc<HeldCommands> {
    let held = Arc::new(HeldCommands { delay, ..HeldCommands::default() });
    serve(Server::bind(path).unwrap(), held.clone());
    held
}

/// Gets the first `pages` pages, and checks them.
#[track_caller]
fn get_pages(blade: &dyn Carrier, pages: usize) {
    let mut rooms = vec![[0xee; PAGE_BYTES]; pages];
    let wanted = |(at, room): (usize, _)| {
        let room: &mut [u8; PAGE_BYTES] = room;
        Wanted { key: Key::new(1, at as u32), room, outcome: Carried::Lost }
    };
    let mut wanted: Vec<_> = rooms.iter_mut().enumerate().map(wanted).collect();
    blade.get(&mut wanted, true);
    assert!(wanted.iter().all(|one| one.outcome == Carried::Done));
    for (at, room) in rooms.iter().enumerate() {
        assert!(*room == [at as u8; PAGE_BYTES], "another page than {at}");
    }
}

#[test]
fn pages_come_in_while_others_wait_to_go_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blade.sock");
    let held = slow_blade(&path, Duration::ZERO);
    let blade = carrier(&format!("ring:{}", path.display()), None, IDENTITY, TIMEOUT).unwrap();
    let blade = &*blade;
    let page = [1; PAGE_BYTES];
    let get = |pages: usize| get_pages(blade, pages);
    get(1);
    held.set(&[io::STORE]);
    scope(|scope| {
        let put = scope.spawn(|| {
            let parcels: Vec<_> =
                (0..8).map(|at| Parcel { key: Key::new(1, at), value: &page }).collect();
            let mut outcomes = [Carried::Lost; 8];
            blade.put(&parcels, &mut outcomes);
            assert_eq!(outcomes, [Carried::Done; 8]);
        });
        held.wait_for(1);
        // One page, and a batch of them.
        get(1);
        get(16);
        assert!(!put.is_finished());
        held.set(&[io::STORE, io::RETRIEVE]);
        // Each core requests pages at the same time.
        let cores = available_parallelism().unwrap().get().min(7) as u32;
        let gets: Vec<_> = (0..cores).map(|at| scope.spawn(move || get(1 + at as usize))).collect();
        held.wait_for(1 + cores);
        assert!(!gets.iter().any(std::thread::ScopedJoinHandle::is_finished));
        held.set(&[]);
    });
}

#[test]
fn a_client_of_a_slow_server_sleeps_instead_of_looking_in_vain() {
    const POLL: Duration = Duration::from_millis(2);
    const CALLS: u32 = 100;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blade.sock");
    slow_blade(&path, 2 * POLL);
    let options = RingOptions { poll: POLL, timeout: TIMEOUT, ..RingOptions::default() };
    let ring = Ring::connect_with(&path, options).unwrap();
    let cpu_time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = cpu_time();
    for number in 0..CALLS {
        ring.flush(Pool(1), Key::new(1, number)).unwrap();
    }
    // A client that polled before each sleep would use POLL of processor time for each call.
    assert!(cpu_time() - before < POLL * CALLS / 4, "{:?}", cpu_time() - before);
}

#[test]
fn pages_that_came_before_a_connection_ended_are_not_asked_for_again_nor_taken_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blade.sock");
    let held = slow_blade(&path, Duration::ZERO);
    let blade = carrier(&format!("ring:{}", path.display()), None, IDENTITY, TIMEOUT).unwrap();
    for came in 1..5 {
        held.values_left.store(came, Ordering::SeqCst);
        get_pages(&*blade, 5);
        assert!(!blade.is_down());
    }
}

#[test]
fn an_answer_that_comes_after_the_time_out_is_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blade.sock");
    let held = slow_blade(&path, Duration::ZERO);
    // The first answer must come in time on a busy machine, too.
    let options = RingOptions { timeout: Duration::from_secs(2), ..RingOptions::default() };
    let ring = Ring::connect_with(&path, options).unwrap();
    let mut page = [0; PAGE_BYTES];
    let mut get = |number| ring.get(Pool(1), Key::new(1, number), &mut page);
    get(1).unwrap();
    held.set(&[io::RETRIEVE]);
    assert!(matches!(get(2), Err(Error::Timeout)));
    held.set(&[]);
    held.wait_for(0);
    assert!(matches!(get(3), Err(Error::Lost)), "the ring goes on");
}
