//! The in-thread mode: a fault raises SIGBUS in the faulting thread, which answers it itself.
//!
//! This saves two context switches a fault. In this mode the kernel does not answer the faults of
//! system calls: they fail with EFAULT. So memory that a system call will touch is *held*: it is
//! brought in before the call and does not leave until the call returns. The caller has to hold it.
//! The preload library does so for the C library's reads and writes.

use crate::buffers::Buffers;
use crate::fault::Fault;
use crate::holds::Hold;
use crate::pager::Pager;
use crate::places::PROGRAM_PLACE;
use crate::table::{Entry, PageState, place};
use crate::tree::Faults;
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use std::sync::atomic::Ordering;

/// A share of 1 in [`Pager::note_crowd`].
const CROWD_ONE: u32 = 1 << 16;
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
        let task_counters = &self.task_counters[crate::places::HANDLERS_MAX..];
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
        let share = self.crowding.share.load(Ordering::Relaxed);
        let full = set + 1 >= self.crowding.cores.load(Ordering::Relaxed) as usize;
        let more = if full { (CROWD_ONE - share) / 64 } else { 0 };
        self.crowding.share.store(share - share / 64 + more, Ordering::Relaxed);
    }

    /// Whether all cores are busy with faults.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowding.share.load(Ordering::Relaxed) > CROWD_ONE / 16
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
