//! What the tasks of a process that evict tell each other.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The state of eviction.
#[derive(Default)]
pub(crate) struct Evicting {
    /// 1 when the evictor has work; it sleeps on this.
    pub(crate) wanted: AtomicU32,
    /// When the move under way began, or 0.
    pub(crate) moving_since_ns: AtomicU64,
    /// Until when nobody tries to evict, because nothing could leave.
    pub(crate) stuck_until_ns: AtomicU64,
}
