//! How far the scan for equal values is, and what it found.

/// Memory that values share, by the last complete scan, and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMemory {
    /// Values, and pages of values longer than a page, that share their memory with others.
    pub values: u64,
    /// Memory that they would take in addition if each had its own.
    pub saved_bytes: u64,
    /// Values for which the scan found an equal one. Only grows.
    pub merged_values: u64,
    /// Values that were replaced while others shared their memory. Only grows.
    pub unshared_values: u64,
    /// Persistent values in memory that the scan looked at.
    pub scanned_values: u64,
    /// Of these, values of a length that is not shared: too short, or too long for a cell and no page.
    pub unfit_values: u64,
    /// Of these, values that are as long as a page that a run has sealed under a key of its own
    /// ([`spillway_tiers::blade::Seal::Encrypted`]): equal pages then differ.
    pub sealed_values: u64,
}

/// State of the scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) shard: usize,
    pub(crate) leaf: u32,
    /// Counted since the first shard.
    pub(crate) seen: SharedMemory,
    /// Results of the last complete scan.
    pub(crate) last: SharedMemory,
}
