//! What a process has from the process that forked it, which counts it.

use std::sync::atomic::AtomicI64;

/// The inherited amounts.
#[derive(Default)]
pub(crate) struct Inherited {
    /// Bytes of the store at the fork.
    pub(crate) store_bytes: AtomicI64,
    /// Resident pages.
    pub(crate) pages: AtomicI64,
}
