//! Memory whose contents the program has dropped, by MADV_DONTNEED or by guards.
//!
//! The kernel's event comes before the pages go, so until the call returns a resident page may still be there. Of a
//! call through the C library [`Pager::dropped_now`] learns afterwards, and counts off what has gone: otherwise other
//! pages would leave for the sake of pages that are not there. After a bare system call instruction a page counts until
//! the clock hand passes (`evict`) or the program touches it.

use crate::evict::{Victims, window_end};
use crate::pager::Pager;
use crate::table::{Entry, Leaf, PageState, WINDOW_PAGES, leaf_end};
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::residency;
use std::sync::atomic::Ordering;

impl Pager {
    /// The program dropped the contents of a range, and the call is done. Pages that left while it was on its way are
    /// dropped too.
    pub fn dropped_now(&self, start: usize, end: usize) {
        let _work = self.program_work();
        self.table.for_each(start, end, |_, leaf, at| self.forget_copies(leaf, at));
        let mut from = start;
        while let Some((at, leaf)) = self.table.next_leaf(from, end) {
            if leaf.resident.load(Ordering::Relaxed) <= 0 {
                from = leaf_end(at);
                continue;
            }
            from = window_end(at).min(end);
            self.count_off_gone(&Self::claim(leaf, at, from, 0));
        }
    }

    /// Frees what the store has of a page: it is not what a fault finds from now on.
    fn forget_copies(&self, leaf: &Leaf, at: usize) {
        loop {
            let seen = leaf.load(at);
            let new = match seen.state() {
                PageState::Filling | PageState::Leaving => {
                    sched_yield();
                    continue;
                }
                PageState::Far | PageState::Pooled => Entry::NONE,
                PageState::Resident if seen.has(Entry::CLEAN) => Entry::new(PageState::Resident, 0),
                _ => return,
            };
            if leaf.exchange(at, seen, new) {
                if new != Entry::NONE && seen.has(Entry::INHERITED) {
                    self.charge(1);
                }
                self.free_copies(seen);
                return;
            }
        }
    }

    /// Counts off those claimed pages that are not there any more. The others, which the program has touched again,
    /// stay. The claim keeps faults out meanwhile, so a page that is absent stays absent until it is counted off.
    fn count_off_gone(&self, victims: &Victims<'_>) {
        if victims.claimed == 0 {
            return;
        }
        // Beyond the claimed pages the window may not be mapped.
        let first = victims.claimed.trailing_zeros() as usize;
        let last = WINDOW_PAGES - victims.claimed.leading_zeros() as usize;
        let mut present = [0u8; WINDOW_PAGES];
        let asked = &mut present[first..last];
        let known = residency(victims.address + first * PAGE_SIZE, asked).is_ok();
        for page in victims.pages() {
            let at = victims.first + page;
            let seen = victims.leaf.load(at);
            let new = if known && present[page] & 1 == 0 {
                self.count_off(victims.leaf, seen)
            } else {
                seen.to(PageState::Resident)
            };
            if victims.leaf.settle(at, new) {
                self.main().wake(victims.address + page * PAGE_SIZE, PAGE_SIZE);
            }
        }
    }
}
