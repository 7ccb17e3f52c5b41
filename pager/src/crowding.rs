//! How often every core was busy with a fault.

use std::sync::atomic::AtomicU32;

/// The running share of such faults, kept by [`crate::Pager`] for threads that answer their own.
pub(crate) struct Crowding {
    /// Cores that the program may use.
    pub(crate) cores: AtomicU32,
    /// The share.
    pub(crate) share: AtomicU32,
}

impl Crowding {
    pub(crate) const fn new() -> Self {
        Self { cores: AtomicU32::new(1), share: AtomicU32::new(0) }
    }
}
