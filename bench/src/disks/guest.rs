//! A guest's side of a tmem disk: what QEMU and the guest's driver do, without them.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::go_on;

/// Most requests in flight in a queue.
pub const DEPTH_MAX: u16 = 32;
/// Longest request, bytes.
pub const REQUEST_BYTES_MAX: u32 = 128 << 10;
/// Descriptors of a queue; each request has three.
const DESCRIPTORS: u16 = 128;
/// Bytes of a queue's part of the guest's memory: rings, headers and buffers.
const QUEUE_BYTES: u64 = 8 << 20;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x4000;
const HEADER_BYTES: u64 = 64;
const STATUS: u64 = 32;
const BUFFERS: u64 = 0x10000;
/// Where QEMU would have the guest's memory.
const USER: u64 = 0x7000_0000_0000;
/// The flags of a descriptor that another follows, and of one that the device writes.
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
/// The driver polls, so the device need not tell it of each completion (`VIRTIO_RING_F_EVENT_IDX`).
const EVENT_INDEX: u64 = 1 << 29;
const SECTOR_BYTES: u64 = 512;
/// Longest wait for a completion.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the disk.
    Read = 0,
    /// To the disk.
    Write = 1,
}

/// A request: what, from which byte of the disk, and how many bytes.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What it does.
    pub kind: Kind,
    /// The first byte.
    pub at: u64,
    /// Its length in bytes.
    pub bytes: u32,
}

/// A guest that uses a disk.
pub struct Guest {
    /// Its queues, each for one thread.
    pub queues: Vec<Queue>,
    /// The connection, which ends with it.
    _frontend: Frontend,
}

/// A virtqueue, as the guest's driver has it.
pub struct Queue {
    memory: Arc<GuestMemoryMmap>,
    start: u64,
    kick: EventFd,
    call: EventFd,
    /// Waits for `call`.
    waiter: Epoll,
    available: u16,
    used: u16,
    free: Vec<u16>,
    /// The slots in flight and when each began.
    flying: VecDeque<(u16, Instant)>,
}

impl Guest {
    /// Connects to a disk's socket, with that many queues.
    pub fn connect(socket: &Path, queues: u16) -> anyhow::Result<Self> {
        let bytes = QUEUE_BYTES * u64::from(queues);
        let file: File = memfd_create("guest", MemfdFlags::ALLOW_SEALING)?.into();
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let mut frontend = Frontend::connect(socket, u64::from(queues))?;
        frontend.set_owner()?;
        frontend.set_features(frontend.get_features()? & !EVENT_INDEX)?;
        frontend.get_protocol_features()?;
        let wanted = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK;
        frontend.set_protocol_features(wanted)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: bytes,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }])?;
        let whole = (GuestAddress(0), bytes as usize, Some(FileOffset::new(file, 0)));
        let memory = Arc::new(GuestMemoryMmap::from_ranges_with_files([whole])?);
        let queues = (0..queues)
            .map(|number| Queue::set_up(&mut frontend, number, Arc::clone(&memory)))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { queues, _frontend: frontend })
    }
}

impl Queue {
    fn set_up(
        frontend: &mut Frontend,
        number: u16,
        memory: Arc<GuestMemoryMmap>,
    ) -> anyhow::Result<Self> {
        let start = QUEUE_BYTES * u64::from(number);
        let (kick, call) = (EventFd::new(0)?, EventFd::new(0)?);
        let waiter = Epoll::new()?;
        let completions = EpollEvent::new(EventSet::IN, 0);
        waiter.ctl(ControlOperation::Add, call.as_raw_fd(), completions)?;
        let index = usize::from(number);
        let rings = VringConfigData {
            queue_max_size: DESCRIPTORS,
            queue_size: DESCRIPTORS,
            flags: 0,
            desc_table_addr: USER + start,
            used_ring_addr: USER + start + USED,
            avail_ring_addr: USER + start + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_num(index, DESCRIPTORS)?;
        frontend.set_vring_base(index, 0)?;
        frontend.set_vring_addr(index, &rings)?;
        frontend.set_vring_call(index, &call)?;
        frontend.set_vring_kick(index, &kick)?;
        frontend.set_vring_enable(index, true)?;
        let (free, flying) = ((0..DEPTH_MAX).collect(), VecDeque::new());
        Ok(Self { memory, start, kick, call, waiter, available: 0, used: 0, free, flying })
    }

    /// Keeps `depth` requests in flight until there is no next one. Returns the time that each took.
    pub fn run(
        &mut self,
        depth: usize,
        mut next: impl FnMut() -> Option<Request>,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut took = Vec::new();
        loop {
            let free = depth - self.flying.len();
            let mut offered = 0;
            while offered < free
                && let Some(request) = next()
            {
                self.offer(request)?;
                offered += 1;
            }
            if offered > 0 {
                self.kick.write(1)?;
            }
            if self.flying.is_empty() {
                return Ok(took);
            }
            self.complete(&mut took)?;
            go_on()?;
        }
    }

    fn place(&self, at: u64) -> GuestAddress {
        GuestAddress(self.start + at)
    }

    /// Puts a request into the available ring.
    fn offer(&mut self, request: Request) -> anyhow::Result<()> {
        let slot = self.free.pop().context("more requests than slots")?;
        let header = HEADERS + u64::from(slot) * HEADER_BYTES;
        let buffer = BUFFERS + u64::from(slot) * u64::from(REQUEST_BYTES_MAX);
        let first = slot * 3;
        let flags = if request.kind == Kind::Read { NEXT | DEVICE_WRITES } else { NEXT };
        let memory = &self.memory;
        memory.write_obj(request.kind as u32, self.place(header))?;
        memory.write_obj(request.at / SECTOR_BYTES, self.place(header + 8))?;
        memory.write_obj(0xff_u8, self.place(header + STATUS))?;
        self.describe(first, header, 16, NEXT)?;
        self.describe(first + 1, buffer, request.bytes, flags)?;
        self.describe(first + 2, header + STATUS, 1, DEVICE_WRITES)?;
        let entry = AVAILABLE + 4 + 2 * u64::from(self.available % DESCRIPTORS);
        memory.write_obj(first, self.place(entry))?;
        self.available = self.available.wrapping_add(1);
        self.flying.push_back((slot, Instant::now()));
        memory.store(self.available, self.place(AVAILABLE + 2), Ordering::Release)?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn describe(&self, number: u16, at: u64, bytes: u32, flags: u16) -> anyhow::Result<()> {
        let place = 16 * u64::from(number);
        self.memory.write_obj(self.start + at, self.place(place))?;
        self.memory.write_obj(bytes, self.place(place + 8))?;
        self.memory.write_obj(flags, self.place(place + 12))?;
        self.memory.write_obj(number + 1, self.place(place + 14))?;
        Ok(())
    }

    /// Waits for completions, and notes what they took.
    fn complete(&mut self, took: &mut Vec<Duration>) -> anyhow::Result<()> {
        let told = self.waiter.wait(PATIENCE.as_millis() as i32, &mut [EpollEvent::default()])?;
        ensure!(told > 0, "a request was not answered");
        self.call.read()?;
        let used = self.memory.load::<u16>(self.place(USED + 2), Ordering::Acquire)?;
        while self.used != used {
            let entry = USED + 4 + 8 * u64::from(self.used % DESCRIPTORS);
            let head: u32 = self.memory.read_obj(self.place(entry))?;
            let slot = (head / 3) as u16;
            let known = self.flying.iter().position(|flight| flight.0 == slot);
            let flight = known.and_then(|at| self.flying.remove(at));
            let (_, began) = flight.context("a completion of no request")?;
            let header = HEADERS + u64::from(slot) * HEADER_BYTES;
            let status: u8 = self.memory.read_obj(self.place(header + STATUS))?;
            ensure!(status == 0, "a request failed with status {status}");
            took.push(began.elapsed());
            self.free.push(slot);
            self.used = self.used.wrapping_add(1);
        }
        Ok(())
    }
}
