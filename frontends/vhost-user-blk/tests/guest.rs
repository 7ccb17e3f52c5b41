//! The guest's side of the protocol, over a socket and with virtqueues in a memfd.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use spillway_store::{ClientConfig, Config, Store};
use spillway_vhost_user_blk::{Disk, DiskConfig, Kind, Server};
use tempfile::TempDir;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

const MEMORY_BYTES: u64 = 4 << 20;
const QUEUE_SIZE: u16 = 64;
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x4000;
const DATA: u64 = 0x10000;
const DATA_BYTES: u64 = 0x30000;
/// Address of the guest's memory in QEMU.
const USER: u64 = 0x7000_0000_0000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const BLOCKS: u64 = 150;
const PATIENCE: Duration = Duration::from_secs(20);

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

struct Host {
    dir: TempDir,
    disk: Arc<Disk>,
    store: Arc<Store>,
    _server: Server,
}

impl Host {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let store = Arc::new(Store::open(Config::embedded(8 << 20)).unwrap());
        let client = store.add_client(ClientConfig::default()).unwrap();
        let config = DiskConfig {
            name: "swap-of-a-guest-with-a-long-name".into(),
            kind: Kind::Swap,
            client,
            bytes: BLOCKS * 4096,
            backing: dir.path().join("file"),
            latency: Duration::ZERO,
        };
        let disk = Arc::new(Disk::open(store.clone(), config).unwrap());
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let server = Server::start(listener, disk.clone(), 4).unwrap();
        Self { dir, disk, store, _server: server }
    }

    fn connect(&self) -> Frontend {
        let frontend = Frontend::connect(self.dir.path().join("socket"), 4).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        // Without VIRTIO_RING_F_EVENT_IDX, so that every completion notifies the guest.
        frontend.set_features(features & !(1 << 29)).unwrap();
        assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
        let mut frontend = frontend;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        assert!(frontend.get_protocol_features().unwrap().contains(wanted));
        frontend.set_protocol_features(wanted).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend
    }
}

/// The guest's memory and its driver.
struct Guest {
    memory: File,
    kick: EventFd,
    call: EventFd,
    available: u16,
    inflight: Option<(VhostUserInflight, File)>,
}

fn memory(seals: SealFlags) -> File {
    let memory = memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, MEMORY_BYTES).unwrap();
    fcntl_add_seals(&memory, seals).unwrap();
    memory.into()
}

fn region(memory: &File, bytes: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: bytes,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    }
}

impl Guest {
    fn new() -> Self {
        Self {
            memory: memory(SealFlags::SHRINK | SealFlags::GROW),
            kick: EventFd::new(0).unwrap(),
            call: EventFd::new(0).unwrap(),
            available: 0,
            inflight: None,
        }
    }

    /// Sets the queue up as QEMU does.
    fn attach(&mut self, frontend: &mut Frontend) {
        frontend.set_mem_table(&[region(&self.memory, MEMORY_BYTES)]).unwrap();
        if self.inflight.is_none() {
            let wanted =
                VhostUserInflight { num_queues: 1, queue_size: QUEUE_SIZE, ..Default::default() };
            self.inflight = Some(frontend.get_inflight_fd(&wanted).unwrap());
        }
        let (inflight, file) = self.inflight.as_ref().unwrap();
        frontend.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
        frontend.set_vring_num(0, QUEUE_SIZE).unwrap();
        frontend.set_vring_base(0, 0).unwrap();
        let rings = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: USER + DESCRIPTORS,
            used_ring_addr: USER + USED,
            avail_ring_addr: USER + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_addr(0, &rings).unwrap();
        frontend.set_vring_call(0, &self.call).unwrap();
        frontend.set_vring_kick(0, &self.kick).unwrap();
        frontend.set_vring_enable(0, true).unwrap();
    }

    fn half(&self, at: u64) -> u16 {
        let mut half = [0; 2];
        self.memory.read_exact_at(&mut half, at).unwrap();
        u16::from_le_bytes(half)
    }

    fn used(&self) -> u16 {
        self.half(USED + 2)
    }

    fn descriptor(&self, at: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_all_at(&descriptor, DESCRIPTORS + 16 * u64::from(at)).unwrap();
    }

    /// Writes the chain of request number `slot`, and returns its head.
    fn request(&self, slot: u16, kind: u32, sector: u64, data: &[u8], in_bytes: u32) -> u16 {
        let (head, slot) = (slot * 3, u64::from(slot));
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        let header_at = HEADERS + slot * 64;
        let data_at = DATA + slot * DATA_BYTES;
        self.memory.write_all_at(&header, header_at).unwrap();
        self.memory.write_all_at(&[0xff], header_at + 32).unwrap();
        self.memory.write_all_at(data, data_at).unwrap();
        self.descriptor(head, header_at, 16, NEXT, head + 1);
        let (bytes, flags) =
            if in_bytes > 0 { (in_bytes, NEXT | WRITE) } else { (data.len() as u32, NEXT) };
        self.descriptor(head + 1, data_at, bytes, flags, head + 2);
        self.descriptor(head + 2, header_at + 32, 1, WRITE, 0);
        head
    }

    /// Puts a request into the available ring.
    fn offer(&mut self, head: u16) {
        let at = AVAILABLE + 4 + 2 * u64::from(self.available % QUEUE_SIZE);
        self.memory.write_all_at(&head.to_le_bytes(), at).unwrap();
        self.available = self.available.wrapping_add(1);
        self.memory.write_all_at(&self.available.to_le_bytes(), AVAILABLE + 2).unwrap();
    }

    fn wait(&self) {
        let end = Instant::now() + PATIENCE;
        while self.used() != self.available {
            assert!(Instant::now() < end, "not completed: {} of {}", self.used(), self.available);
            std::thread::yield_now();
        }
    }

    fn status(&self, slot: u16) -> u8 {
        let mut status = [0];
        self.memory.read_exact_at(&mut status, HEADERS + u64::from(slot) * 64 + 32).unwrap();
        status[0]
    }

    fn data(&self, slot: u16, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read_exact_at(&mut data, DATA + u64::from(slot) * DATA_BYTES).unwrap();
        data
    }

    /// Executes one request, and returns its status.
    fn ask(&mut self, kind: u32, sector: u64, data: &[u8], in_bytes: u32) -> u8 {
        let head = self.request(0, kind, sector, data, in_bytes);
        self.offer(head);
        self.kick.write(1).unwrap();
        self.wait();
        self.status(0)
    }

    fn read(&mut self, sector: u64, bytes: u32) -> Vec<u8> {
        assert_eq!(self.ask(IN, sector, &[], bytes), 0);
        self.data(0, bytes as usize)
    }
}

fn range(sector: u64, sectors: u32) -> [u8; 16] {
    let mut range = [0; 16];
    range[..8].copy_from_slice(&sector.to_le_bytes());
    range[8..12].copy_from_slice(&sectors.to_le_bytes());
    range
}

#[test]
fn a_guest_reads_what_it_wrote() {
    let host = Host::new();
    let mut frontend = host.connect();
    let mut guest = Guest::new();
    guest.attach(&mut frontend);
    let data: Vec<u8> = (0..8192_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    assert_eq!(guest.ask(OUT, 8, &data, 0), 0);
    assert_eq!(guest.read(8, 8192), data);
    assert_eq!(host.disk.statistics().store_writes, 2);
    assert!(guest.call.read().is_ok(), "completions are told");
    // A sector, across the end of a block.
    assert_eq!(guest.ask(OUT, 15, &[9; 1024], 0), 0);
    let mut expected = data.clone();
    expected[7 * 512..9 * 512].fill(9);
    assert_eq!(guest.read(8, 8192), expected);
    assert_eq!(guest.ask(DISCARD, 0, &range(8, 8), 0), 0);
    expected[..4096].fill(0);
    assert_eq!(guest.read(8, 8192), expected);
    assert_eq!(guest.ask(WRITE_ZEROES, 0, &range(17, 2), 0), 0);
    expected[9 * 512..11 * 512].fill(0);
    assert_eq!(guest.read(8, 8192), expected);
    assert_eq!(guest.ask(FLUSH, 0, &[0], 0), 0);
    assert_eq!(guest.ask(GET_ID, 0, &[], 20), 0);
    assert_eq!(guest.data(0, 20), b"swap-of-a-guest-with");
    assert_eq!(guest.ask(IN, BLOCKS * 8, &[], 512), 1, "beyond the end");
    assert_eq!(guest.ask(77, 0, &[], 512), 2, "no such request");
    let latencies = host.disk.latencies().histograms().into_iter();
    let counts: Vec<(&str, u64)> =
        latencies.map(|(kind, it)| (kind.name(), it.counts.iter().sum())).collect();
    let expected = [("read", 4), ("write", 2), ("discard", 2), ("flush", 1), ("other", 3)];
    assert_eq!(counts, expected, "each request is timed");
    drop(frontend);
}

#[test]
fn the_device_says_what_it_is() {
    let host = Host::new();
    let mut frontend = host.connect();
    assert_eq!(frontend.get_queue_num().unwrap(), 4);
    let asked = [0; 60];
    let (_, space) = frontend.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &asked).unwrap();
    assert_eq!(space[..8], (BLOCKS * 8).to_le_bytes());
    assert_eq!(space[34..36], 4_u16.to_le_bytes());
}

#[test]
fn memory_that_could_vanish_is_refused() {
    let host = Host::new();
    for (file, bytes) in [
        (memory(SealFlags::GROW), MEMORY_BYTES),
        (tempfile::tempfile().unwrap(), 4096),
        (memory(SealFlags::SHRINK), 2 * MEMORY_BYTES),
    ] {
        let frontend = host.connect();
        assert!(frontend.set_mem_table(&[region(&file, bytes)]).is_err());
    }
    let mut guest = Guest::new();
    guest.attach(&mut host.connect());
}

#[test]
fn what_was_in_flight_is_carried_out_by_the_next() {
    let host = Host::new();
    let mut guest = Guest::new();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    assert_eq!(guest.ask(OUT, 8, &[1; 4096], 0), 0);
    drop(frontend);
    // The daemon was killed with three requests in flight. The first is in the used ring, but not recorded as
    // completed.
    // The other two overlap; the one with the lower counter came first.
    let heads = [(1, 16, 2_u8), (2, 24, 3), (3, 24, 4)]
        .map(|(slot, sector, byte)| guest.request(slot, OUT, sector, &[byte; 4096], 0));
    heads.iter().for_each(|&head| guest.offer(head));
    let (_, inflight) = guest.inflight.as_ref().unwrap();
    for (head, counter) in [(heads[0], 10_u64), (heads[1], 12), (heads[2], 11)] {
        let at = 16 + 16 * u64::from(head);
        inflight.write_all_at(&counter.to_le_bytes(), at + 8).unwrap();
        inflight.write_all_at(&[1], at).unwrap();
    }
    inflight.write_all_at(&heads[0].to_le_bytes(), 12).unwrap();
    guest.memory.write_all_at(&2_u16.to_le_bytes(), USED + 2).unwrap();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    guest.wait();
    assert_eq!(guest.status(1), 0xff, "it was done before");
    assert_eq!((guest.status(2), guest.status(3)), (0, 0));
    assert_eq!(guest.read(24, 4096), [3; 4096], "the one with the higher counter came last");
    assert_eq!(guest.read(8, 4096), [1; 4096]);
}

#[test]
fn a_hostile_guest_spoils_its_own_queue() {
    let host = Host::new();
    let mut guest = Guest::new();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    // A circular chain, and one that leads out of the memory.
    guest.descriptor(0, HEADERS, 16, NEXT, 0);
    guest.offer(0);
    guest.descriptor(3, MEMORY_BYTES - 8, 16, NEXT, 4);
    guest.descriptor(4, HEADERS + 32, 1, WRITE, 0);
    guest.offer(3);
    guest.kick.write(1).unwrap();
    guest.wait();
    assert_eq!(guest.ask(OUT, 8, &[1; 512], 0), 0, "the queue goes on");
    // An impossible index: the queue stops, and the device can be set up again.
    guest.memory.write_all_at(&30_000_u16.to_le_bytes(), AVAILABLE + 2).unwrap();
    guest.kick.write(1).unwrap();
    drop(frontend);
    let mut guest = Guest::new();
    guest.attach(&mut host.connect());
    let mut frontend = host.connect();
    guest.inflight = None;
    guest.attach(&mut frontend);
    assert_eq!(guest.read(8, 512), [1; 512]);
}

#[test]
fn requests_into_memory_that_is_not_shared_fail_and_are_counted() {
    let host = Host::new();
    let mut guest = Guest::new();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    let errors = || host.disk.statistics().errors;
    assert_eq!(guest.ask(OUT, 8, &[1; 512], 0), 0);
    assert_eq!(errors(), 0);
    // Memory that was plugged in later and that QEMU does not share lies beyond the announced regions.
    for (number, (flags, status_at)) in
        [(NEXT, HEADERS + 32), (NEXT | WRITE, HEADERS + 32), (NEXT, MEMORY_BYTES)]
            .into_iter()
            .enumerate()
    {
        let head = guest.request(0, if flags == NEXT { OUT } else { IN }, 8, &[], 512);
        let data_at = if status_at == MEMORY_BYTES { DATA } else { MEMORY_BYTES };
        guest.descriptor(head + 1, data_at, 512, flags, head + 2);
        guest.descriptor(head + 2, status_at, 1, WRITE, 0);
        guest.offer(head);
        guest.kick.write(1).unwrap();
        guest.wait();
        let status = if status_at == MEMORY_BYTES { 0xff } else { 1 };
        assert_eq!(guest.status(0), status, "what the guest finds");
        assert_eq!(errors(), number as u64 + 1);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u32, u8),
    Read(u64, u32),
    Zero(u64, u32),
    Discard(u64, u32),
    Target(u64),
    Demote,
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    let span = (0..BLOCKS * 8, 1..300_u32)
        .prop_map(|(at, sectors)| (at, sectors.min((BLOCKS * 8 - at) as u32)));
    prop_oneof![
        5 => (span.clone(), any::<u8>()).prop_map(|((at, count), byte)| Step::Write(at, count, byte)),
        4 => span.clone().prop_map(|(at, count)| Step::Read(at, count)),
        1 => span.clone().prop_map(|(at, count)| Step::Zero(at, count)),
        1 => span.prop_map(|(at, count)| Step::Discard(at, count)),
        1 => prop_oneof![Just(0), 0..BLOCKS].prop_map(Step::Target),
        1 => Just(Step::Demote),
        1 => Just(Step::Reconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Requests for any sectors, against an array of bytes.
    #[test]
    fn a_disk_is_an_array_of_sectors(steps in prop::collection::vec(step(), 1..40)) {
        let host = Host::new();
        let mut frontend = host.connect();
        let mut guest = Guest::new();
        guest.attach(&mut frontend);
        let mut model = vec![0; BLOCKS as usize * 4096];
        for step in steps {
            match step {
                Step::Write(at, count, byte) => {
                    let data: Vec<u8> =
                        (0..count * 512).map(|n| byte.wrapping_add((n >> 5) as u8)).collect();
                    assert_eq!(guest.ask(OUT, at, &data, 0), 0);
                    let start = at as usize * 512;
                    model[start..start + data.len()].copy_from_slice(&data);
                }
                Step::Read(at, count) => {
                    let start = at as usize * 512;
                    let found = guest.read(at, count * 512);
                    assert!(found == model[start..start + count as usize * 512], "{step:?}");
                }
                Step::Zero(at, count) => {
                    assert_eq!(guest.ask(WRITE_ZEROES, 0, &range(at, count), 0), 0);
                    model[at as usize * 512..][..count as usize * 512].fill(0);
                }
                Step::Discard(at, count) => {
                    assert_eq!(guest.ask(DISCARD, 0, &range(at, count), 0), 0);
                    // A discard leaves partial blocks as they are.
                    let (start, end) = (at.div_ceil(8), (at + u64::from(count)) / 8);
                    if start < end {
                        model[start as usize * 4096..end as usize * 4096].fill(0);
                    }
                }
                Step::Target(pages) => host.store.set_target(host.disk.client(), pages).unwrap(),
                Step::Demote => drop(host.disk.demote(50, None)),
                Step::Reconnect => {
                    drop(frontend);
                    frontend = host.connect();
                    guest.attach(&mut frontend);
                }
            }
        }
        for at in (0..BLOCKS * 8).step_by(240) {
            let start = at as usize * 512;
            assert!(guest.read(at, 240 * 512) == model[start..start + 240 * 512]);
        }
    }
}
