//! What a run is given beside its traces: what requests cost, and on what terms clients are served.

use spillway_manager::UNLIMITED;

/// What requests take, and how the node is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A page put into the node, ns.
    pub put_ns: u64,
    /// A page got from the node, ns.
    pub hit_ns: u64,
    /// A page read from the client's disk, ns.
    pub disk_read_ns: u64,
    /// What a client waits for a page that goes to its disk, ns: writes are queued and need not be waited for one
    /// by one.
    pub disk_write_ns: u64,
    /// Between two looks of the manager, ns.
    pub interval_ns: u64,
    /// Pages that a client above its target gives back in an interval at most.
    pub reclaim_pages: u64,
}

impl Costs {
    /// The costs beside a disk that reads a page in `disk_us`.
    pub const fn with_disk(disk_us: u64) -> Self {
        Self {
            put_ns: 5_000,
            hit_ns: 10_000,
            disk_read_ns: disk_us * 1000,
            disk_write_ns: disk_us * 1000 / 8,
            interval_ns: 1_000_000_000,
            reclaim_pages: 4096,
        }
    }
}

/// What an operator says of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The most that it may hold, pages.
    pub cap_pages: u64,
    /// What it may hold at any time, pages.
    pub floor_pages: u64,
    /// What its stalls count, beside 1 for others.
    pub weight: u32,
}

impl Default for Terms {
    fn default() -> Self {
        Self { cap_pages: UNLIMITED, floor_pages: 0, weight: 1 }
    }
}
