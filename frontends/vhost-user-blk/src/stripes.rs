//! Locks of groups of blocks.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks of a disk. Groups that are so far apart share one.
const STRIPES: usize = 64;

/// A lock alone on its cache lines, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(RwLock<()>);

/// Whoever reads blocks shares their group; whoever changes or moves one has it alone.
#[derive(Debug)]
pub struct Stripes(Box<[Stripe]>);

impl Stripes {
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    fn of(&self, group: u64) -> &RwLock<()> {
        &self.0[group as usize % STRIPES].0
    }

    /// For reading blocks of `group`.
    pub fn shared(&self, group: u64) -> RwLockReadGuard<'_, ()> {
        self.of(group).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For changing blocks of `group`.
    pub fn alone(&self, group: u64) -> RwLockWriteGuard<'_, ()> {
        self.of(group).write().unwrap_or_else(PoisonError::into_inner)
    }
}
