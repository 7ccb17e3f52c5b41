//! Parameters of a run beside its traces: the costs of requests, and the clients' limits.

use spillway_manager::UNLIMITED;

/// Times of requests, and settings of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Time to put a page into the node, ns.
    pub put_ns: u64,
    /// Time to get a page from the node, ns.
    pub hit_ns: u64,
    /// Time to read a page from the client's disk, ns.
    pub disk_read_ns: u64,
    /// Time that a client waits for a page to be written to its disk, ns. Writes are queued, so this is less than the
    /// time of a single write.
    pub disk_write_ns: u64,
    /// Time between two samples of the manager, ns.
    pub interval_ns: u64,
}

impl Costs {
    /// The costs with a disk that reads a page in `disk_us`.
    pub const fn with_disk(disk_us: u64) -> Self {
        Self {
            put_ns: 5_000,
            hit_ns: 10_000,
            disk_read_ns: disk_us * 1000,
            disk_write_ns: disk_us * 1000 / 8,
            interval_ns: 1_000_000_000,
        }
    }

    /// The costs of `spillway run` with the store as its blade and a file as its disk, as fitted to real runs: a page
    /// comes from the store in 73 us and from the disk in 430.
    pub const fn of_runs() -> Self {
        Self { hit_ns: 73_000, ..Self::with_disk(430) }
    }

    /// The same with a disk that reads a page in `disk_us`.
    pub const fn and_disk(self, disk_us: u64) -> Self {
        let Self { disk_read_ns, disk_write_ns, .. } = Self::with_disk(disk_us);
        Self { disk_read_ns, disk_write_ns, ..self }
    }
}

/// The operator's settings for a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Most pages that it may hold.
    pub cap_pages: u64,
    /// Pages that it may always hold.
    pub floor_pages: u64,
    /// The weight of its stalls; 1 by default.
    pub weight: u32,
}

impl Default for Terms {
    fn default() -> Self {
        Self { cap_pages: UNLIMITED, floor_pages: 0, weight: 1 }
    }
}
