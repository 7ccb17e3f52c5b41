//! State shared by the evicting tasks of a process.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The state of eviction.
#[derive(Default)]
pub(crate) struct Evicting {
    /// 1 when the evictor has work; it sleeps on this.
    pub(crate) wanted: AtomicU32,
    /// When the move in progress began, or 0.
    pub(crate) moving_since_ns: AtomicU64,
    /// Until when evictions pause, because no page could leave.
    pub(crate) stuck_until_ns: AtomicU64,
}
