//! Locks of parts of a device.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks of a device. Parts that are so far apart share one.
const STRIPES: usize = 64;

/// A lock alone on its cache lines, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(RwLock<()>);

/// Locks by the numbers of a device's parts, each to be shared or to be had alone.
///
/// Of a [`BlockDevice`](crate::BlockDevice) the parts are pages. A change of some bytes of a page reads it, changes
/// it and writes it back, and has it alone meanwhile. Changes of whole pages share it, so they wait neither for each
/// other nor hold anyone up but the rare change of some bytes.
#[derive(Debug)]
pub struct Stripes(Box<[Stripe]>);

impl Stripes {
    /// Locks that nobody holds.
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    fn of(&self, part: u64) -> &RwLock<()> {
        &self.0[part as usize % STRIPES].0
    }

    /// Shares `part`.
    pub fn shared(&self, part: u64) -> RwLockReadGuard<'_, ()> {
        self.of(part).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `part` alone.
    pub fn alone(&self, part: u64) -> RwLockWriteGuard<'_, ()> {
        self.of(part).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares all parts. Whoever has one alone holds one stripe and waits for none, so taking them one by one
    /// ends.
    pub fn all(&self) -> [RwLockReadGuard<'_, ()>; STRIPES] {
        core::array::from_fn(|stripe| self.shared(stripe as u64))
    }
}

impl Default for Stripes {
    fn default() -> Self {
        Self::new()
    }
}
