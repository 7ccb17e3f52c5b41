//! Who holds copies of slabs: a loan on a lender, or the local file.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::backup::BackupFile;
use crate::behind::{Behind, Pages};
use crate::lender::{Carried, Lender};
use crate::lot::{Cargo, Errand, Lot};

/// Threads that carry lots to a holder, besides the threads that want something themselves.
const WORKERS: usize = 2;
/// Bytes of a worker's stack, which is locked in memory. A lender's connection puts a batch of requests and rustls's
/// records there.
const STACK_BYTES: usize = 256 << 10;
/// Lots that wait for a worker without an allocation.
const QUEUE_LOTS: usize = 256;

/// How pages get there.
#[derive(Debug)]
enum Way {
    Lender(Arc<dyn Lender>),
    File(Behind),
}

/// A loan on a lender or the local file, with the threads that carry pages there. Devices may share one.
///
/// The threads end when it is dropped, and each when it is done with what it carries then.
#[derive(Debug)]
pub struct Holder {
    number: u64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    way: Way,
    queue: Mutex<Queue>,
    /// Rung when a lot comes, and at the end.
    came: Condvar,
    /// Lots that are on their way there, the waiting ones included.
    under_way: Mutex<usize>,
    rested: Condvar,
}

#[derive(Debug)]
struct Queue {
    lots: VecDeque<Arc<Lot>>,
    ended: bool,
}

impl Holder {
    /// The number of every local file.
    pub const FILE: u64 = u64::MAX;

    /// A loan. `number` is the caller's name for it, by which losses are told; below [`Self::FILE`].
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn lender(number: u64, lender: Arc<dyn Lender>) -> io::Result<Arc<Self>> {
        Self::start(number, Way::Lender(lender))
    }

    /// The local file, whose number is [`Self::FILE`].
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn file(file: BackupFile) -> io::Result<Arc<Self>> {
        Self::pages(Box::new(file))
    }

    /// What is read and written like the local file.
    pub(crate) fn pages(file: Box<dyn Pages>) -> io::Result<Arc<Self>> {
        Self::start(Self::FILE, Way::File(Behind::start(file)?))
    }

    fn start(number: u64, way: Way) -> io::Result<Arc<Self>> {
        let queue = Queue { lots: VecDeque::with_capacity(QUEUE_LOTS), ended: false };
        let shared = Arc::new(Shared {
            way,
            queue: Mutex::new(queue),
            came: Condvar::new(),
            under_way: Mutex::new(0),
            rested: Condvar::new(),
        });
        let holder = Arc::new(Self { number, shared });
        for _ in 0..WORKERS {
            let shared = Arc::clone(&holder.shared);
            let worker = thread::Builder::new().name("fanout-carry".into());
            worker.stack_size(STACK_BYTES).spawn(move || shared.work())?;
        }
        Ok(holder)
    }

    /// The caller's name for it.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Whether a thread carries its lot itself: calls to a lender end in time, and who waits for room in the buffer waits as long as
    /// it wants. Reading a disk may take longer.
    pub(crate) fn is_prompt(&self, errand: Errand) -> bool {
        self.is_lender() || errand == Errand::Put
    }

    /// Whether it is a loan, and not the local file.
    pub(crate) fn is_lender(&self) -> bool {
        matches!(self.shared.way, Way::Lender(_))
    }

    /// Has a worker carry a lot.
    pub(crate) fn post(&self, lot: &Arc<Lot>) {
        lot.hand_over();
        self.shared.set_out();
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.lots.push_back(Arc::clone(lot));
        drop(queue);
        self.shared.came.notify_one();
    }

    /// Carries a lot on this thread if it needs no waiting; whether it did.
    pub(crate) fn carry_now(&self, cargo: &mut Cargo) -> bool {
        let Cargo { errand: Errand::Put, count, keys, pages, outcomes, .. } = cargo else {
            return false;
        };
        match &self.shared.way {
            Way::Lender(_) => false,
            Way::File(file) => {
                file.put_now(&keys[..*count], &pages[..*count], &mut outcomes[..*count])
            }
        }
    }

    /// Carries a lot on this thread.
    pub(crate) fn carry(&self, cargo: &mut Cargo) {
        self.shared.set_out();
        self.shared.way.carry(cargo);
        self.shared.rest();
    }

    /// Waits until nothing is on its way there.
    pub(crate) fn wait_for_rest(&self) {
        let mut count = self.shared.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        while *count != 0 {
            count = self.shared.rested.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.came.notify_all();
    }
}

impl Shared {
    fn set_out(&self) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn rest(&self) {
        let mut count = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.rested.notify_all();
        }
    }

    fn work(&self) {
        // The kernel may wait for it. Without the privilege there is no kernel behind this device:
        // `spillway_nbd::attach` insists.
        let _ = spillway_platform::swap::serve_swap();
        while let Some(lot) = self.next() {
            self.way.carry(&mut lot.cargo());
            self.rest();
            lot.give_back();
        }
    }

    fn next(&self) -> Option<Arc<Lot>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(lot) = queue.lots.pop_front() {
                return Some(lot);
            }
            if queue.ended {
                return None;
            }
            queue = self.came.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Way {
    fn carry(&self, cargo: &mut Cargo) {
        let Cargo { errand, count, keys, pages, outcomes, deadline, .. } = cargo;
        let (keys, pages) = (&keys[..*count], &mut pages[..*count]);
        let outcomes = &mut outcomes[..*count];
        // What waited for a worker for too long is not even begun.
        if *deadline <= Instant::now() {
            outcomes.fill(Carried::Lost);
            return;
        }
        match self {
            Self::Lender(lender) => match errand {
                Errand::Put => lender.put(keys, pages, outcomes, *deadline),
                Errand::Get => lender.get(keys, pages, outcomes, *deadline),
                Errand::Flush => lender.flush(keys, outcomes, *deadline),
            },
            Self::File(file) => match errand {
                Errand::Put => file.put(keys, pages, outcomes, *deadline),
                Errand::Get => file.get(keys, pages, outcomes),
                // The file keeps its blocks.
                Errand::Flush => outcomes.fill(Carried::Done),
            },
        }
    }
}
