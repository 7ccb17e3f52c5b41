//! What was transferred to and from a blade.

use crate::sync::{AtomicU64, Ordering};

/// Counters of transfers to and from a blade. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BladeCounts {
    /// Pages read back.
    pub reads: u64,
    /// Of these, from the mirror.
    pub mirror_reads: u64,
    /// Bytes read back, sealed.
    pub read_bytes: u64,
    /// Pages sent, to each of blade and mirror that took them.
    pub writes: u64,
    /// Bytes sent, sealed.
    pub written_bytes: u64,
    /// Pages that a blade refused.
    pub refusals: u64,
    /// Lost pages.
    pub lost: u64,
    /// Calls that took longer than 100 ms, or in which blade or mirror went down.
    pub stalls: u64,
    /// The longest of them, ns.
    pub stall_max_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) mirror_reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) refusals: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) stalls: AtomicU64,
    pub(super) stall_max_ns: AtomicU64,
}

impl Counters {
    /// Their values now.
    pub(super) fn counts(&self) -> BladeCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BladeCounts {
            reads: count(&self.reads),
            mirror_reads: count(&self.mirror_reads),
            read_bytes: count(&self.read_bytes),
            writes: count(&self.writes),
            written_bytes: count(&self.written_bytes),
            refusals: count(&self.refusals),
            lost: count(&self.lost),
            stalls: count(&self.stalls),
            stall_max_ns: count(&self.stall_max_ns),
        }
    }
}
