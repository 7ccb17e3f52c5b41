//! The guest's side of the protocol, over a socket and with virtqueues in a memfd.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use spillway_store::{ClientConfig, Config, Store};
use spillway_vhost_user_blk::{Disk, DiskConfig, Kind, Server};
use tempfile::TempDir;
use vhost::vhost_user::message::{
    VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

pub const MEMORY_BYTES: u64 = 4 << 20;
pub const QUEUE_SIZE: u16 = 64;
pub const DESCRIPTORS: u64 = 0;
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;
pub const HEADERS: u64 = 0x4000;
pub const DATA: u64 = 0x10000;
pub const DATA_BYTES: u64 = 0x30000;
/// Address of the guest's memory in QEMU.
pub const USER: u64 = 0x7000_0000_0000;
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const BLOCKS: u64 = 150;
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub struct Host {
    pub dir: TempDir,
    pub disk: Arc<Disk>,
    pub store: Arc<Store>,
    _server: Server,
}

impl Host {
    pub fn new() -> Self {
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

    pub fn connect(&self) -> Frontend {
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
pub struct Guest {
    pub memory: File,
    pub kick: EventFd,
    pub call: EventFd,
    pub available: u16,
    pub inflight: Option<(VhostUserInflight, File)>,
}

pub fn memory(seals: SealFlags) -> File {
    let memory = memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, MEMORY_BYTES).unwrap();
    fcntl_add_seals(&memory, seals).unwrap();
    memory.into()
}

pub fn region(memory: &File, bytes: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: bytes,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    }
}

impl Guest {
    pub fn new() -> Self {
        Self {
            memory: memory(SealFlags::SHRINK | SealFlags::GROW),
            kick: EventFd::new(0).unwrap(),
            call: EventFd::new(0).unwrap(),
            available: 0,
            inflight: None,
        }
    }

    /// Sets the queue up as QEMU does.
    pub fn attach(&mut self, frontend: &mut Frontend) {
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

    pub fn half(&self, at: u64) -> u16 {
        let mut half = [0; 2];
        self.memory.read_exact_at(&mut half, at).unwrap();
        u16::from_le_bytes(half)
    }

    pub fn used(&self) -> u16 {
        self.half(USED + 2)
    }

    pub fn descriptor(&self, at: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_all_at(&descriptor, DESCRIPTORS + 16 * u64::from(at)).unwrap();
    }

    /// Writes the chain of request number `slot`, and returns its head.
    pub fn request(&self, slot: u16, kind: u32, sector: u64, data: &[u8], in_bytes: u32) -> u16 {
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
    pub fn offer(&mut self, head: u16) {
        let at = AVAILABLE + 4 + 2 * u64::from(self.available % QUEUE_SIZE);
        self.memory.write_all_at(&head.to_le_bytes(), at).unwrap();
        self.available = self.available.wrapping_add(1);
        self.memory.write_all_at(&self.available.to_le_bytes(), AVAILABLE + 2).unwrap();
    }

    pub fn wait(&self) {
        let end = Instant::now() + PATIENCE;
        while self.used() != self.available {
            assert!(Instant::now() < end, "not completed: {} of {}", self.used(), self.available);
            std::thread::yield_now();
        }
    }

    pub fn status(&self, slot: u16) -> u8 {
        let mut status = [0];
        self.memory.read_exact_at(&mut status, HEADERS + u64::from(slot) * 64 + 32).unwrap();
        status[0]
    }

    pub fn data(&self, slot: u16, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read_exact_at(&mut data, DATA + u64::from(slot) * DATA_BYTES).unwrap();
        data
    }

    /// Executes one request, and returns its status.
    pub fn ask(&mut self, kind: u32, sector: u64, data: &[u8], in_bytes: u32) -> u8 {
        let head = self.request(0, kind, sector, data, in_bytes);
        self.offer(head);
        self.kick.write(1).unwrap();
        self.wait();
        self.status(0)
    }

    pub fn read(&mut self, sector: u64, bytes: u32) -> Vec<u8> {
        assert_eq!(self.ask(IN, sector, &[], bytes), 0);
        self.data(0, bytes as usize)
    }
}

pub fn range(sector: u64, sectors: u32) -> [u8; 16] {
    let mut range = [0; 16];
    range[..8].copy_from_slice(&sector.to_le_bytes());
    range[8..12].copy_from_slice(&sectors.to_le_bytes());
    range
}
