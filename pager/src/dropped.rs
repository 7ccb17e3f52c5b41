//! Memory whose contents the program has dropped, by MADV_DONTNEED or by guards.
//!
//! The kernel's event comes before the pages go, so until the call returns a resident page may still be there. Of a
//! call through the C library [`Pager::dropped_now`] learns afterwards, and counts off what has gone: otherwise other
//! pages would leave for the sake of pages that are not there. After a bare system call instruction a page counts until
//! the clock hand passes (`evict`) or the program touches it.
//!
//! Other threads may touch the pages at any time, and none of them waits: a page that is filled while the kernel is
//! asked has lost its flag [`Entry::ASKED`], so it keeps counting.

use crate::pager::Pager;
use crate::table::{Entry, LEAF_PAGES, Leaf, PageState, leaf_end, place};
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::residency;
use std::sync::atomic::Ordering;

impl Pager {
    /// The program dropped the contents of a range, and the call is done. Pages that left while it was on its way are
    /// dropped too. The caller holds the range off eviction.
    pub fn dropped_now(&self, start: usize, end: usize) {
        let _work = self.program_work();
        let mut from = start;
        while let Some((at, leaf)) = self.table.next_leaf(from, end) {
            from = leaf_end(at).min(end);
            let mut asked = false;
            for page in place(at)..place(at) + (from - at) / PAGE_SIZE {
                asked |= self.forget_copies(leaf, page);
            }
            if asked {
                self.count_off_gone(leaf, at, from);
            }
        }
    }

    /// Frees what the store has of a page: it is not what a fault finds from now on. A page that may be resident gets
    /// the flag [`Entry::ASKED`]; then the answer is true.
    fn forget_copies(&self, leaf: &Leaf, at: usize) -> bool {
        loop {
            let seen = leaf.load(at);
            let new = match seen.state() {
                PageState::Filling | PageState::Leaving => {
                    sched_yield();
                    continue;
                }
                PageState::Far | PageState::Pooled => Entry::NONE,
                PageState::Resident => Entry::new(PageState::Resident, 0).with(Entry::ASKED),
                PageState::Untouched | PageState::Poisoned => return false,
            };
            if leaf.exchange(at, seen, new) {
                if new != Entry::NONE && seen.has(Entry::INHERITED) {
                    self.charge(1);
                }
                self.free_copies(seen);
                return new != Entry::NONE;
            }
        }
    }

    /// Of the pages of a part of a leaf that were asked about, counts off those that are not there.
    fn count_off_gone(&self, leaf: &Leaf, start: usize, end: usize) {
        let asked = Entry::new(PageState::Resident, 0).with(Entry::ASKED);
        let mut present = [0u8; LEAF_PAGES];
        let present = &mut present[..(end - start) / PAGE_SIZE];
        if residency(start, present).is_err() {
            // Another thread unmaps part of the range, and counts it off.
            present.fill(1);
        }
        for (page, present) in (place(start)..).zip(present) {
            if *present & 1 != 0 {
                let _ = leaf.exchange(page, asked, asked.without(Entry::ASKED));
            } else if leaf.exchange(page, asked, Entry::NONE) {
                leaf.resident.fetch_sub(1, Ordering::Relaxed);
                self.uncharge(1);
            }
        }
    }
}
