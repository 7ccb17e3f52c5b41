//! What a task that answers faults notes down while a thread waits for it, to be dealt with later
//! by the evictor: counts, and store copies that are stale.
//!
//! Each task has notes of its own and is the only one to write them, so noting takes no locked
//! instruction and no shared cache line.

use crate::tree::{BUCKETS, Tree, bucket_of_ns};
use spillway_tiers::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stale handles that one task may leave behind; a power of two.
const STALE_MAX: u64 = 256;

/// A number that one task adds to and another reads.
#[derive(Default)]
pub(crate) struct Own(AtomicU64);

impl Own {
    /// Adds; only the owner may call this.
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
    }
}

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Faults,
    FaultNs,
    FirstTouches,
    Fetches,
    Prefetches,
    Rescues,
    WriteFaults,
    /// Pages that stopped being far.
    Near,
}

const COUNTS: usize = Count::Near as usize + 1;

/// One task's notes.
#[repr(align(64))]
pub(crate) struct Tally {
    counts: [Own; COUNTS],
    histogram: [Own; BUCKETS],
    stale: [AtomicU64; STALE_MAX as usize],
    stale_head: AtomicU64,
    /// What has been dealt with so far.
    dealt: Lock<Dealt>,
}

struct Dealt {
    counts: [u64; COUNTS],
    histogram: [u64; BUCKETS],
    stale_tail: u64,
}

impl Tally {
    pub(crate) const fn new() -> Self {
        let dealt = Dealt { counts: [0; COUNTS], histogram: [0; BUCKETS], stale_tail: 0 };
        Self {
            counts: [const { Own(AtomicU64::new(0)) }; COUNTS],
            histogram: [const { Own(AtomicU64::new(0)) }; BUCKETS],
            stale: [const { AtomicU64::new(0) }; STALE_MAX as usize],
            stale_head: AtomicU64::new(0),
            dealt: Lock::new(dealt),
        }
    }

    /// Counts something; only the owner may call this.
    pub(crate) fn count(&self, what: Count, more: u64) {
        self.counts[what as usize].add(more);
    }

    /// Counts a fault that took this long; only the owner may call this.
    pub(crate) fn count_fault(&self, took_ns: u64) {
        self.count(Count::Faults, 1);
        self.count(Count::FaultNs, took_ns);
        self.histogram[bucket_of_ns(took_ns)].add(1);
    }

    /// How often something was counted so far.
    pub(crate) fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize].0.load(Ordering::Relaxed)
    }

    /// Leaves a stale handle behind; false when there is no room. Only the owner may call this.
    pub(crate) fn leave_stale(&self, handle: u64) -> bool {
        let head = self.stale_head.load(Ordering::Relaxed);
        let place = &self.stale[(head % STALE_MAX) as usize];
        if place.load(Ordering::Acquire) != 0 {
            return false;
        }
        place.store(handle, Ordering::Release);
        self.stale_head.store(head + 1, Ordering::Release);
        true
    }

    /// Deals with what was noted since the last time: adds the counts to the shared page and
    /// gives each stale handle to `flush`. Returns how many pages stopped being far.
    pub(crate) fn deal(&self, tree: &Tree, flush: impl Fn(u64)) -> u64 {
        let mut dealt = self.dealt.lock();
        let head = self.stale_head.load(Ordering::Acquire);
        while dealt.stale_tail < head {
            let place = &self.stale[(dealt.stale_tail % STALE_MAX) as usize];
            flush(place.swap(0, Ordering::AcqRel));
            dealt.stale_tail += 1;
        }
        let mut near = 0;
        for what in 0..COUNTS {
            let now = self.counts[what].0.load(Ordering::Acquire);
            let more = now.wrapping_sub(std::mem::replace(&mut dealt.counts[what], now));
            match counter(tree, what) {
                Some(counter) if more > 0 => {
                    counter.fetch_add(more, Ordering::Relaxed);
                }
                None => near = more,
                Some(_) => {}
            }
        }
        for (bucket, own) in self.histogram.iter().enumerate() {
            let now = own.0.load(Ordering::Acquire);
            let more = now.wrapping_sub(std::mem::replace(&mut dealt.histogram[bucket], now));
            if more > 0 {
                tree.fault_histogram[bucket].fetch_add(more, Ordering::Relaxed);
            }
        }
        near
    }
}

/// The shared counter of a count; far pages are a gauge and have none of this kind.
fn counter(tree: &Tree, what: usize) -> Option<&AtomicU64> {
    let counters = &tree.counters;
    let all = [
        Some(&counters.faults),
        Some(&counters.fault_ns),
        Some(&counters.first_touches),
        Some(&counters.fetches),
        Some(&counters.prefetches),
        Some(&counters.rescues),
        Some(&counters.write_faults),
        None,
    ];
    all[what]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn tree() -> Box<Tree> {
        // SAFETY: zeros are a valid tree.
        unsafe { Box::<Tree>::new_zeroed().assume_init() }
    }

    #[test]
    fn what_was_dealt_with_is_not_dealt_with_again() {
        let (tree, tally) = (tree(), Tally::new());
        tally.count(Count::Fetches, 3);
        tally.count(Count::Near, 2);
        tally.count_fault(1000);
        assert_eq!(tally.deal(&tree, |_| ()), 2);
        assert_eq!(tally.deal(&tree, |_| ()), 0);
        tally.count(Count::Fetches, 1);
        tally.deal(&tree, |_| ());
        assert_eq!(tree.counters.fetches.load(Ordering::Relaxed), 4);
        assert_eq!(tree.counters.faults.load(Ordering::Relaxed), 1);
        assert_eq!(tree.fault_histogram[bucket_of_ns(1000)].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn every_stale_handle_is_flushed_once_and_a_full_ring_says_so() {
        let (tree, tally) = (tree(), Tally::new());
        let flushed = RefCell::new(Vec::new());
        for round in 0..3 {
            let first = round * STALE_MAX + 1;
            assert!((first..first + STALE_MAX).all(|handle| tally.leave_stale(handle)));
            assert!(!tally.leave_stale(7));
            tally.deal(&tree, |handle| flushed.borrow_mut().push(handle));
        }
        assert_eq!(*flushed.borrow(), (1..=3 * STALE_MAX).collect::<Vec<_>>());
    }
}
