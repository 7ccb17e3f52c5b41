//! The buffers of a thread that is inside the device.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::lender::BATCH_PAGES;
use crate::page::Page;
use crate::request::{Finished, RequestSlot};

/// Request slots of a thread: the most requests of a batch that are in flight at once. Further ones
/// wait for the next dispatch.
pub const SLOTS: usize = 6;

#[derive(Debug)]
pub struct Scratch {
    pub slots: [Arc<RequestSlot>; SLOTS],
    /// Tells when a request of any slot has been completed.
    pub finished: Arc<Finished>,
    /// Sealed pages of the batch's entries.
    pub sealed: Box<[Page]>,
}

impl Scratch {
    pub fn new() -> Self {
        let finished = Arc::<Finished>::default();
        Self {
            slots: core::array::from_fn(|_| Arc::new(RequestSlot::new(Arc::clone(&finished)))),
            finished,
            sealed: Page::rooms(BATCH_PAGES),
        }
    }

    /// Whether half of the slots are free, so that a request whose answer nobody may wait for can take one.
    pub fn has_spare_slots(&self) -> bool {
        self.slots.iter().filter(|slot| slot.is_free()).count() >= SLOTS / 2
    }

    /// Waits until a slot is free. All may be with holders that did not answer in time: they become free when those
    /// calls end.
    pub fn wait_for_slot(&self) {
        loop {
            let seen = self.finished.count();
            if self.slots.iter().any(|slot| slot.is_free()) {
                return;
            }
            self.finished.wait(seen, None);
        }
    }
}

/// The free buffers. A thread that finds none waits.
#[derive(Debug)]
pub struct Pool {
    free: Mutex<Vec<Scratch>>,
    arrived: Condvar,
}

/// Buffers that are in use.
pub struct Taken<'a> {
    pool: &'a Pool,
    scratch: Option<Scratch>,
}

impl Pool {
    pub fn new(count: usize) -> Self {
        let scratches = (0..count.max(1)).map(|_| Scratch::new());
        Self { free: Mutex::new(scratches.collect()), arrived: Condvar::new() }
    }

    pub fn take(&self) -> Taken<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(scratch) = free.pop() {
                return Taken { pool: self, scratch: Some(scratch) };
            }
            free = self.arrived.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        // The vector has room: the buffers were taken from it.
        free.extend(self.scratch.take());
        drop(free);
        self.pool.arrived.notify_one();
    }
}

impl Deref for Taken<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        self.scratch.as_ref().expect("gone at the end only")
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        self.scratch.as_mut().expect("gone at the end only")
    }
}
