//! The counters of a device.

use core::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counters of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads of a page or of a part of one.
    pub reads: u64,
    /// Writes of a page or of a part of one.
    pub writes: u64,
    /// Pages that were discarded and took memory before.
    pub discards: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Pages read from the second copy because the first failed.
    pub fail_overs: u64,
    /// Holders that were declared lost.
    pub lost_places: u64,
    /// Pages of which no copy could be read or written.
    pub errors: u64,
    /// Pages that wait now for a last copy whose lender does not answer.
    pub waiting_pages: u64,
    /// Pages that have waited for a last copy whose lender did not answer.
    pub waits: u64,
    /// The longest time that a batch took, µs.
    pub longest_stall_us: u64,
    /// Pages that were copied to a new place of their slab.
    pub moved_pages: u64,
    /// Pages that were asked of the second copy too, because the first took longer than usual.
    pub hedged_pages: u64,
    /// Pages that a copy lacks now, because its holder missed their last write.
    pub behind_pages: u64,
    /// Pages that were brought up to date in a copy that lacked them.
    pub mended_pages: u64,
    /// Pages that are stored now.
    pub stored_pages: u64,
}

#[derive(Debug, Default)]
pub(crate) struct AtomicCounters {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub discards: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub fail_overs: AtomicU64,
    pub lost_places: AtomicU64,
    pub errors: AtomicU64,
    pub waiting_pages: AtomicU64,
    pub waits: AtomicU64,
    pub longest_stall_us: AtomicU64,
    pub moved_pages: AtomicU64,
    pub hedged_pages: AtomicU64,
    pub mended_pages: AtomicU64,
    pub stored_pages: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl AtomicCounters {
    pub(crate) fn note_stall(&self, took: Duration) {
        self.longest_stall_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Counts the pages of a batch that wait; `counted` is how many of it were counted before.
    pub(crate) fn note_waiting(&self, counted: &mut u64, waiting: u64) {
        if waiting > *counted {
            add(&self.waits, waiting - *counted);
            add(&self.waiting_pages, waiting - *counted);
        } else {
            self.waiting_pages.fetch_sub(*counted - waiting, Ordering::Relaxed);
        }
        *counted = waiting;
    }

    pub(crate) fn snapshot(&self, behind_pages: u64) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            reads: get(&self.reads),
            writes: get(&self.writes),
            discards: get(&self.discards),
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
            fail_overs: get(&self.fail_overs),
            lost_places: get(&self.lost_places),
            errors: get(&self.errors),
            waiting_pages: get(&self.waiting_pages),
            waits: get(&self.waits),
            longest_stall_us: get(&self.longest_stall_us),
            moved_pages: get(&self.moved_pages),
            hedged_pages: get(&self.hedged_pages),
            behind_pages,
            mended_pages: get(&self.mended_pages),
            stored_pages: get(&self.stored_pages),
        }
    }
}
