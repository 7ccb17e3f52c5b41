//! The order in which the kernel's events are processed.

use std::sync::atomic::AtomicU32;

use spillway_platform::lock::Lock;

/// Makes a message be processed before the next one is read.
pub(crate) struct EventLock {
    /// Held while a message is read and, if it is an event, until it is processed.
    pub(crate) lock: Lock<()>,
    /// Odd while it is held, for threads that only check it.
    pub(crate) reading: AtomicU32,
}

impl EventLock {
    pub(crate) const fn new() -> Self {
        Self { lock: Lock::new(()), reading: AtomicU32::new(0) }
    }
}
