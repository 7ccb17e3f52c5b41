//! The buffers of a thread that is inside of the device.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::lender::BATCH_PAGES;
use crate::lot::Lot;
use crate::page::Page;

/// Lots of a thread: so many holders and errands a round serves at the same time. What is more waits for its turn.
pub const LOTS: usize = 6;

#[derive(Debug)]
pub struct Scratch {
    pub lots: [Arc<Lot>; LOTS],
    /// Sealed pages of the round's entries.
    pub sealed: Box<[Page]>,
}

/// The buffers that nobody uses. A thread that finds none waits.
#[derive(Debug)]
pub struct Pool {
    free: Mutex<Vec<Scratch>>,
    came: Condvar,
}

/// Buffers that are in use.
pub struct Taken<'a> {
    pool: &'a Pool,
    scratch: Option<Scratch>,
}

impl Pool {
    pub fn new(count: usize) -> Self {
        let scratch = |_| Scratch {
            lots: core::array::from_fn(|_| Arc::new(Lot::new())),
            sealed: Page::rooms(BATCH_PAGES),
        };
        Self { free: Mutex::new((0..count.max(1)).map(scratch).collect()), came: Condvar::new() }
    }

    pub fn take(&self) -> Taken<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(scratch) = free.pop() {
                return Taken { pool: self, scratch: Some(scratch) };
            }
            free = self.came.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        // There is room: it came from there.
        free.extend(self.scratch.take());
        drop(free);
        self.pool.came.notify_one();
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
