//! Locks of pages. A round takes those of all its pages at once, in one order, so that rounds never wait in a circle.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::lender::BATCH_PAGES;

/// Locks of a device. Pages that are so far apart share one.
const LOCKS: usize = 4096;

#[derive(Debug)]
pub struct Locks(Box<[RwLock<()>]>);

/// A lock that is held; it ends with this.
enum Held<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

/// The locks of a round.
pub struct Guards<'a> {
    _held: [Option<Held<'a>>; BATCH_PAGES],
}

impl Locks {
    pub fn new() -> Self {
        Self((0..LOCKS).map(|_| RwLock::new(())).collect())
    }

    /// Takes the locks of pages, each to be shared or (true) to be had alone. At most [`BATCH_PAGES`].
    pub fn take(&self, pages: impl Iterator<Item = (u64, bool)>) -> Guards<'_> {
        let mut wanted = [(usize::MAX, false); BATCH_PAGES];
        let mut count = 0;
        for (place, (page, alone)) in wanted.iter_mut().zip(pages) {
            *place = (page as usize % LOCKS, alone);
            count += 1;
        }
        let wanted = &mut wanted[..count];
        wanted.sort_unstable();
        let mut held = [const { None }; BATCH_PAGES];
        for (at, &(lock, alone)) in wanted.iter().enumerate() {
            // Of pages that share a lock, the one that wants it alone sorts last.
            if wanted.get(at + 1).is_some_and(|next| next.0 == lock) {
                continue;
            }
            let lock = &self.0[lock];
            held[at] = Some(if alone {
                Held::Alone { _guard: lock.write().unwrap_or_else(PoisonError::into_inner) }
            } else {
                Held::Shared { _guard: lock.read().unwrap_or_else(PoisonError::into_inner) }
            });
        }
        Guards { _held: held }
    }
}
