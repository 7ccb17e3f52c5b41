//! One virtqueue, on a thread of its own.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::{io, mem};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

use crate::chain::DescriptorTable;
use crate::disk::Disk;
use crate::inflight::QueueInflight;
use crate::memory::Memory;
use crate::service::Service;

/// A queue's thread needs little: its buffers are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// By what the guest is told that requests are done. QEMU changes it while the queue runs.
pub type Call = Arc<Mutex<Option<Arc<File>>>>;

/// Where a queue lies and how it begins.
#[derive(Debug)]
pub struct Setup {
    pub disk: Arc<Disk>,
    pub memory: Arc<Memory>,
    pub number: u16,
    pub size: u16,
    pub descriptors: GuestAddress,
    pub available: GuestAddress,
    pub used: GuestAddress,
    /// Where it goes on in the available ring, unless requests in flight are noted.
    pub next: u16,
    pub event_index: bool,
    pub kick: File,
    pub call: Call,
    pub inflight: Option<QueueInflight>,
}

/// A queue that is served.
#[derive(Debug)]
pub struct RunningQueue {
    stop: Arc<Stop>,
    thread: JoinHandle<u16>,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    wake: OwnedFd,
}

/// The guest did something with its rings that virtio rules out: the queue stands still until it is
/// set up anew.
#[derive(Debug)]
struct Broken;

impl From<virtio_queue::Error> for Broken {
    fn from(_: virtio_queue::Error) -> Self {
        Self
    }
}

impl RunningQueue {
    /// Begins to serve a queue.
    ///
    /// # Errors
    /// `InvalidInput` when it does not lie in the guest's memory; what the kernel says when there are no
    /// threads or descriptors left.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let mut queue = Queue::new(setup.size).map_err(invalid)?;
        queue.try_set_desc_table_address(setup.descriptors).map_err(invalid)?;
        queue.try_set_avail_ring_address(setup.available).map_err(invalid)?;
        queue.try_set_used_ring_address(setup.used).map_err(invalid)?;
        queue.set_event_idx(setup.event_index);
        queue.set_ready(true);
        if !queue.is_valid(setup.memory.guest()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let used = queue.used_idx(setup.memory.guest(), Ordering::Acquire).map_err(invalid)?.0;
        queue.set_next_used(used);
        let mut inflight = setup.inflight;
        let again = inflight.as_mut().map(|inflight| inflight.recover(used));
        // With requests in flight noted, the ring goes on behind them.
        let next = again.as_ref().map_or(setup.next, |again| used.wrapping_add(again.len() as u16));
        queue.set_next_avail(next);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), wake });
        let worker = Worker {
            table: DescriptorTable { address: setup.descriptors.0, length: setup.size },
            service: Service::new(setup.disk),
            memory: setup.memory,
            queue,
            kick: setup.kick,
            call: setup.call,
            inflight,
            stop: Arc::clone(&stop),
        };
        let again = again.unwrap_or_default();
        let thread = thread::Builder::new()
            .name(format!("disk-queue-{}", setup.number))
            .stack_size(STACK_BYTES)
            .spawn(move || worker.run(&again))?;
        Ok(Self { stop, thread })
    }

    /// Asks it to end behind the request that it is at.
    pub fn ask(&self) {
        self.stop.asked.store(true, Ordering::Release);
        // Only a full counter refuses it, and that wakes as well.
        let _ = rustix::io::write(&self.stop.wake, &1_u64.to_ne_bytes());
    }

    /// Ends it. Gives where it would go on in the available ring.
    pub fn stop(self) -> u16 {
        self.ask();
        self.thread.join().unwrap_or(0)
    }
}

/// Has a guest look at its queue.
pub fn notify(call: &Call) {
    let call = call.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(call) = call {
        // What the guest's QEMU made of its own descriptor is its own loss.
        let _ = rustix::io::write(&*call, &1_u64.to_ne_bytes());
    }
}

struct Worker {
    service: Service,
    memory: Arc<Memory>,
    queue: Queue,
    table: DescriptorTable,
    kick: File,
    call: Call,
    inflight: Option<QueueInflight>,
    stop: Arc<Stop>,
}

impl Worker {
    /// Serves until it is stopped; `again` are requests of a daemon before.
    fn run(mut self, again: &[u16]) -> u16 {
        // One that was killed may have completed requests and not said so.
        notify(&self.call);
        let mut broken = again.iter().try_for_each(|&head| self.serve(head)).is_err();
        while !self.stopped() {
            broken = broken || self.drain().is_err();
            if broken {
                tracing::warn!("a guest's virtqueue is not as virtio says: it stands still");
            }
            broken |= self.wait(broken);
        }
        self.queue.next_avail()
    }

    fn stopped(&self) -> bool {
        self.stop.asked.load(Ordering::Acquire)
    }

    /// Waits for a kick, or to be stopped; a broken queue for the latter alone. Whether no kick can come any
    /// more.
    fn wait(&mut self, broken: bool) -> bool {
        let mut fds =
            [PollFd::new(&self.stop.wake, PollFlags::IN), PollFd::new(&self.kick, PollFlags::IN)];
        let count = if broken { 1 } else { 2 };
        match poll(&mut fds[..count], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!("can't wait for a guest: {error}"),
        }
        let seen = if broken { PollFlags::empty() } else { fds[1].revents() };
        if seen.contains(PollFlags::IN) {
            let mut count = [0; mem::size_of::<u64>()];
            // That it says nothing is as good: the queue is looked at.
            let _ = rustix::io::read(&self.kick, &mut count);
        }
        !seen.is_empty() && !seen.contains(PollFlags::IN)
    }

    /// Serves all that is available.
    fn drain(&mut self) -> Result<(), Broken> {
        loop {
            self.queue.disable_notification(self.memory.guest())?;
            let mut served = 0_u64;
            while !self.stopped()
                && let Some(head) = self.next_head()?
            {
                self.serve(head)?;
                served += 1;
            }
            if self.stopped() || !self.queue.enable_notification(self.memory.guest())? {
                return Ok(());
            }
            if served == 0 && self.next_head_is_missing()? {
                return Err(Broken);
            }
        }
    }

    fn next_head(&mut self) -> Result<Option<u16>, Broken> {
        let mut available = self.queue.iter(self.memory.guest())?;
        Ok(available.next().map(|chain| chain.head_index()))
    }

    /// Whether the ring says that there is a request and has none to read.
    fn next_head_is_missing(&mut self) -> Result<bool, Broken> {
        let missing = self.next_head()?.is_none();
        if !missing {
            self.queue.go_to_previous_position();
        }
        let index = self.queue.avail_idx(self.memory.guest(), Ordering::Acquire)?;
        Ok(missing && index.0 != self.queue.next_avail())
    }

    fn serve(&mut self, head: u16) -> Result<(), Broken> {
        if let Some(inflight) = &mut self.inflight {
            inflight.begin(head);
        }
        let written = self.service.serve(self.memory.guest(), self.table, head);
        if let Some(inflight) = &self.inflight {
            inflight.completing(head);
        }
        self.queue.add_used(self.memory.guest(), head, written)?;
        if let Some(inflight) = &self.inflight {
            inflight.completed(head, self.queue.next_used());
        }
        if self.queue.needs_notification(self.memory.guest())? {
            notify(&self.call);
        }
        Ok(())
    }
}
