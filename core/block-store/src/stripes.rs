//! Striped reader-writer locks for the parts of a device.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of locks of a device. Parts whose numbers differ by a multiple of it share a lock.
const STRIPES: usize = 64;

/// A lock alone on two cache lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(RwLock<()>);

/// Reader-writer locks for the parts of a device, by part number.
///
/// The parts of a [`BlockDevice`](crate::BlockDevice) are its pages. A write of part of a page takes the lock
/// exclusively, because it reads the page, changes it and writes it back. A write of a whole page takes the lock
/// shared, so whole-page writes never wait for each other.
#[derive(Debug)]
pub struct Stripes(Box<[Stripe]>);

impl Stripes {
    /// A set of free locks.
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    fn of(&self, part: u64) -> &RwLock<()> {
        &self.0[part as usize % STRIPES].0
    }

    /// Takes the lock of `part` shared.
    pub fn shared(&self, part: u64) -> RwLockReadGuard<'_, ()> {
        self.of(part).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock of `part` exclusively.
    pub fn alone(&self, part: u64) -> RwLockWriteGuard<'_, ()> {
        self.of(part).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all locks shared, one by one. This can't deadlock: a thread that holds a lock exclusively waits for no
    /// other lock.
    pub fn all(&self) -> [RwLockReadGuard<'_, ()>; STRIPES] {
        core::array::from_fn(|stripe| self.shared(stripe as u64))
    }
}

impl Default for Stripes {
    fn default() -> Self {
        Self::new()
    }
}
