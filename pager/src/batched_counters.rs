//! Batched counters: each task that answers faults keeps its own counts, and the handles of stale
//! store copies. The evictor adds the counts to the shared page and frees the copies later, when no
//! thread waits for it.
//!
//! Only the owning task writes them, so counting needs no atomic read-modify-write instruction and
//! touches no shared cache line.

use crate::tree::{BUCKETS, Tree, bucket_of_ns};
use spillway_platform::lock::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stale handles that one task can queue; a power of two.
const STALE_MAX: u64 = 256;

/// A number that one task adds to and another reads.
#[derive(Default)]
pub(crate) struct OwnedCounter(AtomicU64);

impl OwnedCounter {
    /// Adds to the counter. Only the owner may call this.
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
    }
}

/// The counters.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Faults,
    FaultNs,
    FirstTouches,
    Fetches,
    Prefetches,
    Rescues,
    WriteFaults,
}

const COUNTS: usize = Count::WriteFaults as usize + 1;

/// The counters and stale handles of one task.
#[repr(align(64))]
pub(crate) struct BatchedCounters {
    counts: [OwnedCounter; COUNTS],
    histogram: [OwnedCounter; BUCKETS],
    /// The longest fault, ns. Only the owner changes it.
    longest_ns: AtomicU64,
    stale: [AtomicU64; STALE_MAX as usize],
    stale_head: AtomicU64,
    /// The published values.
    published: Lock<Published>,
}

struct Published {
    counts: [u64; COUNTS],
    histogram: [u64; BUCKETS],
    stale_tail: u64,
}

impl BatchedCounters {
    pub(crate) const fn new() -> Self {
        let published = Published { counts: [0; COUNTS], histogram: [0; BUCKETS], stale_tail: 0 };
        Self {
            counts: [const { OwnedCounter(AtomicU64::new(0)) }; COUNTS],
            histogram: [const { OwnedCounter(AtomicU64::new(0)) }; BUCKETS],
            longest_ns: AtomicU64::new(0),
            stale: [const { AtomicU64::new(0) }; STALE_MAX as usize],
            stale_head: AtomicU64::new(0),
            published: Lock::new(published),
        }
    }

    /// Adds to a count. Only the owner may call this.
    pub(crate) fn count(&self, what: Count, more: u64) {
        self.counts[what as usize].add(more);
    }

    /// Counts a fault and how long it took. Only the owner may call this.
    pub(crate) fn count_fault(&self, took_ns: u64) {
        self.count(Count::Faults, 1);
        self.count(Count::FaultNs, took_ns);
        self.histogram[bucket_of_ns(took_ns)].add(1);
        if took_ns > self.longest_ns.load(Ordering::Relaxed) {
            self.longest_ns.store(took_ns, Ordering::Relaxed);
        }
    }

    /// The current value of a count.
    pub(crate) fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize].0.load(Ordering::Relaxed)
    }

    /// Queues a stale handle. Returns false if the queue is full. Only the owner may call this.
    pub(crate) fn queue_stale(&self, handle: u64) -> bool {
        let head = self.stale_head.load(Ordering::Relaxed);
        let place = &self.stale[(head % STALE_MAX) as usize];
        if place.load(Ordering::Acquire) != 0 {
            return false;
        }
        place.store(handle, Ordering::Release);
        self.stale_head.store(head + 1, Ordering::Release);
        true
    }

    /// Publishes the counts since the last call: adds them to the shared page, and passes each
    /// stale handle to `flush`.
    pub(crate) fn publish(&self, tree: &Tree, flush: impl Fn(u64)) {
        let mut published = self.published.lock();
        let head = self.stale_head.load(Ordering::Acquire);
        while published.stale_tail < head {
            let place = &self.stale[(published.stale_tail % STALE_MAX) as usize];
            flush(place.swap(0, Ordering::AcqRel));
            published.stale_tail += 1;
        }
        for (what, counter) in counters(tree).into_iter().enumerate() {
            let now = self.counts[what].0.load(Ordering::Acquire);
            let more = now.wrapping_sub(std::mem::replace(&mut published.counts[what], now));
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
        tree.counters
            .fault_max_ns
            .fetch_max(self.longest_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        for (bucket, own) in self.histogram.iter().enumerate() {
            let now = own.0.load(Ordering::Acquire);
            let more = now.wrapping_sub(std::mem::replace(&mut published.histogram[bucket], now));
            if more > 0 {
                tree.fault_histogram[bucket].fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

/// The shared counters, in the order of [`Count`].
fn counters(tree: &Tree) -> [&AtomicU64; COUNTS] {
    let counters = &tree.counters;
    [
        &counters.faults,
        &counters.fault_ns,
        &counters.first_touches,
        &counters.fetches,
        &counters.prefetches,
        &counters.rescues,
        &counters.write_faults,
    ]
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
    fn a_count_is_published_once() {
        let (tree, counters) = (tree(), BatchedCounters::new());
        counters.count(Count::Fetches, 3);
        counters.count_fault(1000);
        counters.publish(&tree, |_| ());
        counters.publish(&tree, |_| ());
        counters.count(Count::Fetches, 1);
        counters.publish(&tree, |_| ());
        assert_eq!(tree.counters.fetches.load(Ordering::Relaxed), 4);
        assert_eq!(tree.counters.faults.load(Ordering::Relaxed), 1);
        assert_eq!(tree.fault_histogram[bucket_of_ns(1000)].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_longest_fault_of_all_tasks_is_published() {
        let (tree, tasks) = (tree(), [BatchedCounters::new(), BatchedCounters::new()]);
        let published = || tree.counters.fault_max_ns.load(Ordering::Relaxed);
        for (task, took_ns) in [(0, 900), (1, 5000), (1, 70), (0, 1000)] {
            tasks[task].count_fault(took_ns);
        }
        tasks.iter().for_each(|task| task.publish(&tree, |_| ()));
        assert_eq!(published(), 5000);
        tasks[0].publish(&tree, |_| ());
        assert_eq!(published(), 5000);
    }

    #[test]
    fn every_stale_handle_is_flushed_once_and_a_full_ring_says_so() {
        let (tree, counters) = (tree(), BatchedCounters::new());
        let flushed = RefCell::new(Vec::new());
        for round in 0..3 {
            let first = round * STALE_MAX + 1;
            assert!((first..first + STALE_MAX).all(|handle| counters.queue_stale(handle)));
            assert!(!counters.queue_stale(7));
            counters.publish(&tree, |handle| flushed.borrow_mut().push(handle));
        }
        assert_eq!(*flushed.borrow(), (1..=3 * STALE_MAX).collect::<Vec<_>>());
    }
}
