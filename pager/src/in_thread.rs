//! The in-thread mode: a fault raises SIGBUS in the faulting thread, which answers it itself.
//!
//! This saves two context switches a fault. In this mode the kernel does not answer the faults of
//! system calls: they fail with EFAULT. So memory that a system call will touch is *held*: it is
//! brought in before the call and does not leave until the call returns. The caller has to hold it.
//! The preload library does so for the C library's reads and writes.

use crate::batched_counters::BatchedCounters;
use crate::fault::Fault;
use crate::pager::{Buffers, PROGRAM_PLACE, Pager};
use crate::table::{Entry, PageState, place};
use crate::tree::Faults;
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Threads that can answer faults at the same time.
pub(crate) const ANSWERERS: usize = 32;
/// A share of 1 in [`Pager::note_crowd`].
const CROWD_ONE: u32 = 1 << 16;
/// Ranges that can be held at the same time. A thread that finds none free waits for one. A call
/// that waits for another program, on a socket for example, holds its range meanwhile.
pub(crate) const HOLDS: usize = 1024;

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
    fn with(
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

/// Ranges that system calls are at work on.
pub(crate) struct Holds {
    /// Counts the forks that led here: a child's holds are its own.
    generation: AtomicU32,
    count: AtomicU32,
    ranges: [(AtomicUsize, AtomicUsize); HOLDS],
}

/// A held range; released when dropped.
pub struct Hold<'a> {
    holds: &'a Holds,
    at: usize,
    generation: u32,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.holds.generation.load(Ordering::Relaxed) != self.generation {
            return;
        }
        self.holds.ranges[self.at].1.store(0, Ordering::Release);
        self.holds.ranges[self.at].0.store(0, Ordering::Release);
        self.holds.count.fetch_sub(1, Ordering::Release);
    }
}

impl Holds {
    pub(crate) const fn new() -> Self {
        let ranges = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; HOLDS];
        Self { generation: AtomicU32::new(0), count: AtomicU32::new(0), ranges }
    }

    /// In a forked child: drops the holds of its parent's threads.
    pub(crate) fn let_go_after_fork(&mut self) {
        *self.generation.get_mut() += 1;
        *self.count.get_mut() = 0;
        for range in &mut self.ranges {
            (*range.0.get_mut(), *range.1.get_mut()) = (0, 0);
        }
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn hold(&self, start: usize, end: usize) -> Hold<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        loop {
            for (at, range) in self.ranges.iter().enumerate() {
                let free = range.0.compare_exchange(0, start, Ordering::SeqCst, Ordering::Relaxed);
                if free.is_ok() {
                    range.1.store(end, Ordering::SeqCst);
                    let generation = self.generation.load(Ordering::Relaxed);
                    return Hold { holds: self, at, generation };
                }
            }
            sched_yield();
        }
    }

    /// Holds a range if nothing is held. Do not also hold it by [`Self::hold`].
    pub(crate) fn hold_alone(&self, start: usize, end: usize) -> Option<Hold<'_>> {
        self.count.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        // Ranges are released before the count, so they are all free.
        let (from, to) = &self.ranges[0];
        from.store(start, Ordering::SeqCst);
        to.store(end, Ordering::SeqCst);
        let generation = self.generation.load(Ordering::Relaxed);
        Some(Hold { holds: self, at: 0, generation })
    }

    /// Whether a system call is at work on part of a range.
    pub(crate) fn overlap(&self, start: usize, end: usize) -> bool {
        self.count.load(Ordering::SeqCst) != 0
            && self.ranges.iter().any(|(from, to)| {
                from.load(Ordering::SeqCst) < end && start < to.load(Ordering::SeqCst)
            })
    }
}

impl Pager {
    /// Whether threads answer their own faults.
    #[must_use]
    pub fn is_in_thread(&self) -> bool {
        self.settings.faults == Faults::Signal as u32
    }

    /// Answers a SIGBUS at this address; false if the page is not managed.
    pub fn answer_in_thread(&'static self, address: usize, write: bool) -> bool {
        let address = address & !(PAGE_SIZE - 1);
        let state = self.entry(address).state();
        let untouched = state == PageState::Untouched;
        if state == PageState::Poisoned || untouched && !self.is_known(address) {
            return false;
        }
        let began_ns = crate::link::now_ns();
        // Its signal handler blocks all signals already.
        let work = self.rest.work(PROGRAM_PLACE);
        self.wait_for_events();
        let task_counters = &self.task_counters[crate::pager::HANDLERS_MAX..];
        self.buffer_pool.with(task_counters, |set, buffers| {
            self.note_crowd(set);
            self.answer_own(address, write, buffers);
            let now_ns = crate::link::now_ns();
            buffers.counters.count_fault(now_ns - began_ns);
            self.choose_eviction(now_ns);
        });
        drop(work);
        true
    }

    fn is_known(&self, address: usize) -> bool {
        let _work = self.rest.work(PROGRAM_PLACE);
        self.overlaps(address, address + PAGE_SIZE)
    }

    /// Keeps a running share of the faults at which every core was busy answering one: while it
    /// is large no core is free to evict ahead of need, and faults do it themselves.
    fn note_crowd(&self, set: usize) {
        let share = self.crowd.load(Ordering::Relaxed);
        let full = set + 1 >= self.cores.load(Ordering::Relaxed) as usize;
        let more = if full { (CROWD_ONE - share) / 64 } else { 0 };
        self.crowd.store(share - share / 64 + more, Ordering::Relaxed);
    }

    /// Whether all cores are busy with faults.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) > CROWD_ONE / 16
    }

    fn answer_own(&self, address: usize, write: bool, buffers: &mut Buffers) {
        let entry = self.entry(address);
        match entry.state() {
            // Another task works on the page: the thread faults again.
            PageState::Filling | PageState::Leaving => sched_yield(),
            PageState::Resident if write => {
                self.answer(Fault { address, write, protected: true }, buffers);
                // A page that is not clean may not be there at all; then it reads as zero.
                let dirty = !entry.has(Entry::CLEAN);
                if dirty
                    && self
                        .table
                        .find(address)
                        .is_some_and(|leaf| leaf.load(place(address)) == entry)
                {
                    self.answer(Fault { address, write, protected: false }, buffers);
                }
            }
            _ => self.answer(Fault { address, write, protected: false }, buffers),
        }
    }

    /// Excludes a range from eviction until the hold is dropped. Evictions in progress there have
    /// ended when this returns.
    #[must_use]
    pub fn hold_off(&self, start: usize, end: usize) -> Hold<'_> {
        let hold = self.holds.hold(start, end);
        // As work, so that no fork copies the turn while it is taken.
        let _work = self.program_work();
        drop(self.staging.turn());
        hold
    }

    /// Brings in the memory that a system call will touch, and keeps it until the hold is dropped.
    /// None when no part of it is managed.
    pub fn hold(&self, start: usize, bytes: usize) -> Option<Hold<'_>> {
        let end = start.checked_add(bytes)?;
        if bytes == 0 || !self.is_managed(start, end) {
            return None;
        }
        let first = start & !(PAGE_SIZE - 1);
        let hold = self.holds.hold(first, end);
        for page in (first..end).step_by(PAGE_SIZE) {
            if self.entry(page).state() != PageState::Resident {
                // SAFETY: the program passes this memory to a system call that would fault on it;
                // if it isn't readable the program gets its signal here instead of EFAULT.
                let _ = unsafe { std::ptr::read_volatile(page.max(start) as *const u8) };
            }
        }
        Some(hold)
    }
}
