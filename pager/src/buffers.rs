//! Buffers of tasks that answer faults or evict.

use crate::batched_counters::BatchedCounters;
use crate::places::ANSWERERS;
use rustix::thread::sched_yield;
use spillway_store::Packer;
use spillway_tiers::PageBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Buffers of one task that answers faults or evicts.
pub struct Buffers {
    /// A page in transit from the store.
    pub(crate) page: Box<PageBuf>,
    /// Several pages in transit, one after the other.
    pub(crate) run: Box<[PageBuf]>,
    /// For the pages that a fault evicts.
    pub(crate) packer: Packer,
    /// Pages counted into the budget ahead of need, so that not every fault does it.
    pub(crate) credit_pages: i64,
    /// The counters of the task.
    pub(crate) counters: &'static BatchedCounters,
}

impl Buffers {
    /// Fresh buffers for the task with these counters.
    pub(crate) fn new(counters: &'static BatchedCounters) -> Self {
        Self {
            page: Box::default(),
            run: vec![PageBuf::ZERO; crate::streams::MOST_AHEAD].into_boxed_slice(),
            packer: Packer::new(),
            credit_pages: 0,
            counters,
        }
    }
}

/// The pool of buffers for threads that answer their own faults.
pub(crate) struct BufferPool {
    sets: [BufferSet; ANSWERERS],
}

struct BufferSet {
    taken: AtomicBool,
    buffers: AtomicPtr<Buffers>,
}

impl BufferSet {
    const fn free() -> Self {
        Self { taken: AtomicBool::new(false), buffers: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

impl BufferPool {
    pub(crate) const fn new() -> Self {
        Self { sets: [const { BufferSet::free() }; ANSWERERS] }
    }

    /// Runs `work` with a free set of buffers, and its index.
    pub(crate) fn with(
        &self,
        task_counters: &'static [BatchedCounters],
        work: impl FnOnce(usize, &mut Buffers),
    ) {
        let (at, set) = loop {
            let free = |(_, set): &(usize, &BufferSet)| !set.taken.swap(true, Ordering::Acquire);
            match self.sets.iter().enumerate().find(free) {
                Some(found) => break found,
                None => sched_yield(),
            }
        };
        let mut buffers = set.buffers.load(Ordering::Relaxed);
        if buffers.is_null() {
            buffers = Box::into_raw(Box::new(Buffers::new(&task_counters[at])));
            set.buffers.store(buffers, Ordering::Relaxed);
        }
        // SAFETY: the buffers are made once and never freed. Only the thread that has taken the set
        // uses them.
        work(at, unsafe { &mut *buffers });
        set.taken.store(false, Ordering::Release);
    }
}
