//! Locks of pages. A batch takes the locks of all its pages at once, in one order, so that batches
//! never deadlock.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::lender::BATCH_PAGES;

/// Locks of a device. Pages whose numbers differ by a multiple of this share a lock.
const LOCKS: usize = 4096;

#[derive(Debug)]
pub struct Locks(Box<[RwLock<()>]>);

/// A held lock. Dropping it releases the lock.
enum Guard<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Exclusive { _guard: RwLockWriteGuard<'a, ()> },
}

/// The locks of a batch.
pub struct Guards<'a> {
    _guards: [Option<Guard<'a>>; BATCH_PAGES],
}

impl Locks {
    pub fn new() -> Self {
        Self((0..LOCKS).map(|_| RwLock::new(())).collect())
    }

    /// Takes the locks of at most [`BATCH_PAGES`] pages, each shared or (true) exclusive.
    pub fn take(&self, pages: impl Iterator<Item = (u64, bool)>) -> Guards<'_> {
        let mut wanted = [(usize::MAX, false); BATCH_PAGES];
        let mut count = 0;
        for (place, (page, exclusive)) in wanted.iter_mut().zip(pages) {
            *place = (page as usize % LOCKS, exclusive);
            count += 1;
        }
        let wanted = &mut wanted[..count];
        wanted.sort_unstable();
        let mut held = [const { None }; BATCH_PAGES];
        for (at, &(lock, exclusive)) in wanted.iter().enumerate() {
            // Of pages that share a lock, an exclusive one sorts last.
            if wanted.get(at + 1).is_some_and(|next| next.0 == lock) {
                continue;
            }
            let lock = &self.0[lock];
            held[at] = Some(if exclusive {
                Guard::Exclusive { _guard: lock.write().unwrap_or_else(PoisonError::into_inner) }
            } else {
                Guard::Shared { _guard: lock.read().unwrap_or_else(PoisonError::into_inner) }
            });
        }
        Guards { _guards: held }
    }
}
