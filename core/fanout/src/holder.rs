//! A holder keeps copies of slabs: it is a loan on a lender, or the local file.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::backup::BackupFile;
use crate::lender::{Lender, PageOutcome};
use crate::pulse::Pulse;
use crate::request::{Operation, Payload, RequestSlot};
use crate::write_back::{Pages, WriteBack};

/// Threads of a holder that execute requests. A thread inside the device executes some itself.
const WORKERS: usize = 4;
/// Bytes of a worker's stack, which is locked in memory. A lender's connection keeps a batch of
/// requests and rustls's records there.
const STACK_BYTES: usize = 256 << 10;
/// Requests that can wait for a worker without an allocation.
const QUEUE_SLOTS: usize = 256;

/// How pages reach the holder.
#[derive(Debug)]
enum Transport {
    Lender(Arc<dyn Lender>),
    File(WriteBack),
}

/// A loan on a lender or the local file, with the threads that execute requests to it. Devices may
/// share one.
///
/// Dropping it ends the threads, each after the request that it is executing.
#[derive(Debug)]
pub struct Holder {
    number: u64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    transport: Transport,
    pulse: Pulse,
    queue: Mutex<Queue>,
    /// Notified when a request is queued, and at the end.
    arrived: Condvar,
    /// Requests in flight, the queued ones included.
    in_flight: Mutex<usize>,
    idle: Condvar,
}

#[derive(Debug)]
struct Queue {
    slots: VecDeque<Arc<RequestSlot>>,
    ended: bool,
}

impl Holder {
    /// The number of every local file.
    pub const FILE: u64 = u64::MAX;

    /// A loan. `number` is the caller's name for it, which a [`Loss`](crate::Loss) reports. It is
    /// below [`Self::FILE`].
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn lender(number: u64, lender: Arc<dyn Lender>) -> io::Result<Arc<Self>> {
        Self::start(number, Transport::Lender(lender))
    }

    /// The local file, whose number is [`Self::FILE`].
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn file(file: BackupFile) -> io::Result<Arc<Self>> {
        Self::pages(Box::new(file))
    }

    /// A holder over anything that is read and written like the local file.
    pub(crate) fn pages(file: Box<dyn Pages>) -> io::Result<Arc<Self>> {
        Self::start(Self::FILE, Transport::File(WriteBack::start(file)?))
    }

    fn start(number: u64, transport: Transport) -> io::Result<Arc<Self>> {
        let queue = Queue { slots: VecDeque::with_capacity(QUEUE_SLOTS), ended: false };
        let shared = Arc::new(Shared {
            transport,
            pulse: Pulse::new(),
            queue: Mutex::new(queue),
            arrived: Condvar::new(),
            in_flight: Mutex::new(0),
            idle: Condvar::new(),
        });
        let holder = Arc::new(Self { number, shared });
        for _ in 0..WORKERS {
            let shared = Arc::clone(&holder.shared);
            let worker = thread::Builder::new().name("fanout-worker".into());
            worker.stack_size(STACK_BYTES).spawn(move || shared.work())?;
        }
        Ok(holder)
    }

    /// The number that the caller gave the holder.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Whether the sending thread may execute the request itself: a call to a lender ends by its
    /// deadline, and so does waiting for room in the write-back buffer. Reading a disk may take
    /// longer.
    pub(crate) fn is_prompt(&self, operation: Operation) -> bool {
        self.is_lender() || operation == Operation::Put
    }

    /// Whether the holder is a loan, not the local file.
    pub(crate) fn is_lender(&self) -> bool {
        matches!(self.shared.transport, Transport::Lender(_))
    }

    /// Whether it answers, and how fast.
    pub(crate) fn pulse(&self) -> &Pulse {
        &self.shared.pulse
    }

    /// Queues a request for a worker.
    pub(crate) fn submit(&self, slot: &Arc<RequestSlot>) {
        slot.start();
        self.shared.begin();
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.slots.push_back(Arc::clone(slot));
        drop(queue);
        self.shared.arrived.notify_one();
    }

    /// Executes a request on this thread if that needs no waiting. Returns whether it did.
    pub(crate) fn try_execute(&self, payload: &mut Payload) -> bool {
        let Payload { operation: Operation::Put, count, keys, pages, outcomes, .. } = payload
        else {
            return false;
        };
        let Transport::File(file) = &self.shared.transport else { return false };
        let outcomes = &mut outcomes[..*count];
        let is_done = file.put_now(&keys[..*count], &pages[..*count], outcomes);
        if is_done {
            self.shared.note(true, !outcomes.contains(&PageOutcome::Lost));
        }
        is_done
    }

    /// Executes a request on this thread.
    pub(crate) fn execute(&self, payload: &mut Payload) {
        self.shared.begin();
        let is_answered = self.shared.execute(payload);
        self.shared.note(payload.operation != Operation::Get, is_answered);
        self.shared.end();
    }

    /// Waits until no request to the holder is in flight.
    pub(crate) fn wait_until_idle(&self) {
        let mut count = self.shared.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        while *count != 0 {
            count = self.shared.idle.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.arrived.notify_all();
    }
}

impl Shared {
    fn begin(&self) {
        *self.in_flight.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn end(&self) {
        let mut count = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.idle.notify_all();
        }
    }

    /// Executes a request, and records how long that took. Returns whether it was answered.
    fn execute(&self, payload: &mut Payload) -> bool {
        self.transport.execute(payload);
        let is_answered = !payload.outcomes[..payload.count].contains(&PageOutcome::Lost);
        if is_answered && payload.operation == Operation::Get {
            self.pulse.latency.note(payload.sent.elapsed());
        }
        is_answered
    }

    /// Records whether a request was answered.
    fn note(&self, is_change: bool, is_answered: bool) {
        if is_answered {
            self.pulse.answered(is_change);
        } else {
            self.pulse.failed(is_change);
        }
    }

    fn work(&self) {
        // The kernel may wait for this thread. Without the privilege no kernel uses this device:
        // `spillway_nbd::attach` requires it.
        let _ = spillway_platform::swap::serve_swap();
        while let Some(slot) = self.next() {
            let mut payload = slot.payload();
            let is_answered = self.execute(&mut payload);
            let is_change = payload.operation != Operation::Get;
            drop(payload);
            self.end();
            // Whoever waits for the request finds what failed; and the answer of an overdue one counts once it has ended.
            if !is_answered {
                self.pulse.failed(is_change);
            }
            slot.complete(&self.pulse);
            if is_answered {
                self.pulse.answered(is_change);
            }
        }
    }

    fn next(&self) -> Option<Arc<RequestSlot>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(slot) = queue.slots.pop_front() {
                return Some(slot);
            }
            if queue.ended {
                return None;
            }
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Transport {
    fn execute(&self, payload: &mut Payload) {
        let Payload { operation, count, keys, pages, outcomes, deadline, .. } = payload;
        let (keys, pages) = (&keys[..*count], &mut pages[..*count]);
        let outcomes = &mut outcomes[..*count];
        // A request that waited for a worker beyond its deadline is not started.
        if *deadline <= Instant::now() {
            outcomes.fill(PageOutcome::Lost);
            return;
        }
        match self {
            Self::Lender(lender) => match operation {
                Operation::Put => lender.put(keys, pages, outcomes, *deadline),
                Operation::Get => lender.get(keys, pages, outcomes, *deadline),
                Operation::Flush => lender.flush(keys, outcomes, *deadline),
            },
            Self::File(file) => match operation {
                Operation::Put => file.put(keys, pages, outcomes, *deadline),
                Operation::Get => file.get(keys, pages, outcomes),
                // The file keeps its blocks.
                Operation::Flush => outcomes.fill(PageOutcome::Done),
            },
        }
    }
}
