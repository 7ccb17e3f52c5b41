//! The counters of a disk.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The live counters of a disk; see [`DiskStatistics`].
#[derive(Debug, Default)]
pub struct Counters {
    pub store_reads: Counter,
    pub file_reads: Counter,
    pub zero_reads: Counter,
    pub store_writes: Counter,
    pub file_writes: Counter,
    pub refused: Counter,
    pub discarded: Counter,
    pub demoted: Counter,
    pub errors: Counter,
    pub refused_guests: Counter,
}

/// The counters of a disk since it was opened, in blocks of 4096 bytes. `refused` counts puts, `errors` requests,
/// `refused_guests` connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStatistics {
    /// Blocks read from the store.
    pub store_reads: u64,
    /// Blocks read from the backing file.
    pub file_reads: u64,
    /// Blocks read that had no value, and so read as zeros.
    pub zero_reads: u64,
    /// Blocks written to the store.
    pub store_writes: u64,
    /// Blocks written to the backing file.
    pub file_writes: u64,
    /// Puts that the store refused.
    pub refused: u64,
    /// Blocks that the guest discarded or filled with zeros.
    pub discarded: u64,
    /// Blocks moved from the store to the backing file.
    pub demoted: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Connections that were closed because the disk had a guest.
    pub refused_guests: u64,
}

impl Counters {
    pub fn sample(&self) -> DiskStatistics {
        DiskStatistics {
            store_reads: self.store_reads.get(),
            file_reads: self.file_reads.get(),
            zero_reads: self.zero_reads.get(),
            store_writes: self.store_writes.get(),
            file_writes: self.file_writes.get(),
            refused: self.refused.get(),
            discarded: self.discarded.get(),
            demoted: self.demoted.get(),
            errors: self.errors.get(),
            refused_guests: self.refused_guests.get(),
        }
    }
}
