//! Locks that keep changes of parts of one page apart.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks of a device. Pages that are so far apart share one.
const STRIPES: usize = 64;

/// A lock alone on its cache lines, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(RwLock<()>);

/// A change of a part of a page reads it, changes it and writes it back, and has the page's stripe
/// for itself meanwhile. Changes of whole pages share the stripe, so they wait neither for each
/// other nor hold anyone up but the rare change of a part.
#[derive(Debug)]
pub struct Stripes(Box<[Stripe]>);

impl Stripes {
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    fn of(&self, page: u64) -> &RwLock<()> {
        &self.0[page as usize % STRIPES].0
    }

    /// For a change of the whole of `page`.
    pub fn whole(&self, page: u64) -> RwLockReadGuard<'_, ()> {
        self.of(page).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a change of a part of `page`.
    pub fn part(&self, page: u64) -> RwLockWriteGuard<'_, ()> {
        self.of(page).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a change of whole pages all over the device. Whoever changes a part holds one stripe and
    /// waits for none, so taking them one by one ends.
    pub fn all(&self) -> [RwLockReadGuard<'_, ()>; STRIPES] {
        core::array::from_fn(|stripe| self.whole(stripe as u64))
    }
}
