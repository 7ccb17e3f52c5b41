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
use crate::slice;

/// Stack of a queue's thread. It is small, because the thread's buffers are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// The descriptor that notifies the guest of completed requests. QEMU can change it while the queue runs.
pub type Call = Arc<Mutex<Option<Arc<File>>>>;

/// The settings with which a queue starts.
#[derive(Debug)]
pub struct Setup {
    pub disk: Arc<Disk>,
    pub memory: Arc<Memory>,
    pub number: u16,
    pub size: u16,
    pub descriptors: GuestAddress,
    pub available: GuestAddress,
    pub used: GuestAddress,
    /// The index at which it continues in the available ring, if no requests in flight are recorded.
    pub next: u16,
    pub event_index: bool,
    pub kick: File,
    pub call: Call,
    pub inflight: Option<QueueInflight>,
}

/// A queue that a thread serves.
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

/// The guest violated virtio in its rings. The queue stops until QEMU sets it up again.
#[derive(Debug)]
struct Broken;

impl From<virtio_queue::Error> for Broken {
    fn from(_: virtio_queue::Error) -> Self {
        Self
    }
}

impl RunningQueue {
    /// Starts serving a queue.
    ///
    /// # Errors
    /// `InvalidInput` if it does not lie in the guest's memory; the kernel's error if there are no threads or
    /// descriptors left.
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
        // If requests in flight are recorded, the ring continues after them.
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
            .spawn(move || {
                slice::shorten();
                worker.run(&again)
            })?;
        Ok(Self { stop, thread })
    }

    /// Asks its thread to end after the present request.
    pub fn ask(&self) {
        self.stop.asked.store(true, Ordering::Release);
        // Fails only if the counter is full, and a full counter wakes the thread as well.
        let _ = rustix::io::write(&self.stop.wake, &1_u64.to_ne_bytes());
    }

    /// Ends it. Returns where it would continue in the available ring.
    pub fn stop(self) -> u16 {
        self.ask();
        self.thread.join().unwrap_or(0)
    }
}

/// Notifies a guest that its queue has completed requests.
pub fn notify(call: &Call) {
    let call = call.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(call) = call {
        // A failure harms only the guest, whose QEMU supplied the descriptor.
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
    /// Serves requests until it is stopped. First executes `again`, the requests in flight of an earlier daemon.
    fn run(mut self, again: &[u16]) -> u16 {
        // A daemon that was killed may have completed requests without notifying the guest.
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

    /// Waits for a kick or the stop; a broken queue waits only for the stop. Returns whether the kick descriptor has
    /// failed.
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
            // A failed read does not matter: the queue is checked in any case.
            let _ = rustix::io::read(&self.kick, &mut count);
        }
        !seen.is_empty() && !seen.contains(PollFlags::IN)
    }

    /// Serves all available requests.
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

    /// Whether the ring's index announces a request that can't be read.
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
