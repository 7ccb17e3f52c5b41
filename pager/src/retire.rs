//! Writes pages from staging to the store.
//!
//! A window that has waited long enough is *retired*: pages that the store has already are dropped,
//! the others are stored. Pages that no tier accepts go back to the program, above its budget.

use crate::pager::Pager;
use crate::record::Asked;
use crate::staging::{AGAIN_MAX, WINDOW_BYTES};
use crate::table::{Entry, Leaf, PageState, WINDOW_PAGES, place};
use crate::tree::Notice;
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::advise;
use spillway_store::{Packer, Scratch};
use spillway_types::Put;
use std::sync::atomic::Ordering;

/// Pages that a full store demotes at a time.
const MAKE_ROOM_PAGES: usize = 64;

/// The working memory of a write-back, which determines its permitted work.
pub(crate) enum Memory<'a> {
    /// The evictor's, which delays no fault: a full store makes room by writing pages to lower tiers.
    Evictor(&'a mut Scratch),
    /// A fault's: packs pages, and writes none to a lower tier while memory accepts them.
    Fault(&'a mut Packer),
}

impl Pager {
    /// Writes a pooled window back to the store and frees its memory. False if all pages had to stay because
    /// all tiers are full.
    pub(crate) fn retire(&self, window: u16, mut memory: Memory<'_>) -> bool {
        let base = usize::from(window) * WINDOW_PAGES;
        let (mut freed, mut kept, mut waiting) = (0, 0, 0u64);
        // The evictor is not among the tasks that are waited for.
        let is_fault = matches!(memory, Memory::Fault(_));
        for slot in base..base + WINDOW_PAGES {
            if is_fault {
                self.quiesce.sleep();
            }
            if self.staging.note(slot).address.load(Ordering::Acquire) == 0 {
                continue;
            }
            let Some((address, leaf, seen)) = self.take_from_pool(slot) else {
                // Forgotten by the program: it goes with the window. A rescue takes its note away.
                freed += i64::from(self.staging.note(slot).address.load(Ordering::Acquire) != 0);
                continue;
            };
            let new = self.write_back(slot, address, &mut memory);
            match new.state() {
                PageState::Far => {
                    freed += 1;
                    self.count_far(1);
                }
                PageState::Resident => {
                    kept += 1;
                    leaf.resident.fetch_add(1, Ordering::Relaxed);
                }
                PageState::Pooled => waiting |= 1 << (slot - base),
                _ => freed += 1,
            }
            let waited = leaf.settle(place(address), new);
            if waited || seen.has(Entry::WAITED) {
                self.main().wake(address, PAGE_SIZE);
            }
        }
        self.uncharge(freed);
        self.empty(window, waiting);
        freed > 0 || kept == 0
    }

    /// Drops the pages of a window that were dealt with; those that still wait stay pooled.
    fn empty(&self, window: u16, waiting: u64) {
        let base = usize::from(window) * WINDOW_PAGES;
        for page in (0..WINDOW_PAGES).filter(|page| waiting & 1 << page == 0) {
            self.staging.note(base + page).address.store(0, Ordering::Release);
            if waiting != 0 {
                let _ = advise(
                    self.staging.slot_address(base + page),
                    PAGE_SIZE,
                    Advice::LinuxDontNeed,
                );
            }
        }
        if waiting == 0 {
            let _ =
                advise(self.staging.window_address(window), WINDOW_BYTES, Advice::LinuxDontNeed);
            self.staging.turn().give_back(window);
        } else {
            self.staging.turn().pool(window, waiting.count_ones() as usize);
        }
    }

    /// Marks a pooled page as leaving; None when it is not in this slot any more. Waits for a
    /// rescue or remapping in progress.
    fn take_from_pool(&self, slot: usize) -> Option<(usize, &Leaf, Entry)> {
        let note = &self.staging.note(slot).address;
        loop {
            let address = note.load(Ordering::SeqCst) as usize;
            if address == 0 {
                return None;
            }
            let Some(leaf) = self.table.find(address) else { self.broken() };
            let at = place(address);
            let seen = leaf.load(at);
            let here = seen.handle() == slot as u64;
            match seen.state() {
                PageState::Pooled | PageState::Filling if here => {
                    let pooled = seen.state() == PageState::Pooled;
                    if pooled && leaf.exchange(at, seen, seen.to(PageState::Leaving)) {
                        return Some((address, leaf, seen));
                    }
                    sched_yield();
                }
                _ if note.load(Ordering::SeqCst) as usize == address => return None,
                _ => {}
            }
        }
    }

    /// Stores a staged page, unless the store has it already. If every tier refuses, the page goes
    /// back to the program, above its budget.
    fn write_back(&self, slot: usize, address: usize, memory: &mut Memory<'_>) -> Entry {
        let counters = self.counters();
        let clean = self.staging.note(slot).handle.load(Ordering::Acquire);
        if clean != 0 {
            counters.evictions.fetch_add(1, Ordering::Relaxed);
            counters.evictions_clean.fetch_add(1, Ordering::Relaxed);
            return Entry::new(PageState::Far, clean);
        }
        self.link.transfer(1);
        let handle = self.fresh_handle();
        // SAFETY: the staged page is mapped, only this task works on its slot (the entry is
        // marked), and no thread of the program can reach it.
        let page = unsafe { &*(self.staging.slot_address(slot) as *const [u8; PAGE_SIZE]) };
        let stored = match memory {
            Memory::Evictor(scratch) => self.store_packed(handle, page, scratch),
            Memory::Fault(packer) => {
                let put = self.store.put_packed(self.pool, Self::key(handle), page, packer);
                put == Put::Stored || self.store_with_spare(handle, page)
            }
        };
        if stored {
            counters.evictions.fetch_add(1, Ordering::Relaxed);
            self.record(Asked::Out, handle);
            Entry::new(PageState::Far, handle)
        } else {
            self.keep(slot, address)
        }
    }

    /// Stores a page inside a fault whose put found memory full. So a thread that writes faster
    /// than the evictor packs is slowed to the pace of packing and of the disk tier.
    #[cold]
    fn store_with_spare(&self, handle: u64, page: &[u8]) -> bool {
        let mut spare = self.full.spare.lock();
        let Some(scratch) = spare.as_mut().filter(|_| !self.is_stuck()) else { return false };
        let stored = self.store_packed(handle, page, scratch);
        if !stored {
            self.set_stuck();
        }
        stored
    }

    /// Stores a page, packed if that makes it smaller. A full store first makes room: it moves its
    /// coldest pages to the next tier, and drops copies of resident pages.
    fn store_packed(&self, handle: u64, page: &[u8], scratch: &mut Scratch) -> bool {
        let key = Self::key(handle);
        for attempt in 0..3 {
            if let Put::Stored = self.store.put_compressed(self.pool, key, page, scratch) {
                return true;
            }
            let made_room = match attempt {
                0 => self.store.demote(MAKE_ROOM_PAGES, scratch) > 0,
                1 => self.give_up_clean(MAKE_ROOM_PAGES) > 0,
                _ => false,
            };
            if !made_room && attempt == 1 {
                break;
            }
        }
        self.say_full();
        false
    }

    /// Reports once that all tiers are full.
    fn say_full(&self) {
        if self.full.is_told.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let pid = self.slot.pid.load(Ordering::Relaxed);
        match self.store.take_disk_error() {
            Some(errno) => {
                self.tree.notify(Notice::DiskFailed, pid, errno.raw_os_error() as u64);
            }
            None => self.tree.notify(Notice::StoreFull, pid, self.excess(0).max(0) as u64),
        }
    }

    /// Frees the store's copies of resident pages; they are dirty from now on.
    fn give_up_clean(&self, most: usize) -> usize {
        let mut given = 0;
        let all = self.regions.lock().all().to_vec();
        for region in all {
            self.table.for_each(region.start, region.end, |_, leaf, at| {
                let seen = leaf.load(at);
                if given < most && seen.state() == PageState::Resident && seen.has(Entry::CLEAN) {
                    let dirty = seen.without(Entry::CLEAN).without(u64::MAX << 16);
                    if leaf.exchange(at, seen, dirty) {
                        self.flush(seen.handle());
                        given += 1;
                    }
                }
            });
        }
        given
    }

    /// Moves a page that no tier accepts back into the program.
    fn keep(&self, slot: usize, address: usize) -> Entry {
        self.counters().store_refusals.fetch_add(1, Ordering::Relaxed);
        let resident = Entry::new(PageState::Resident, 0).with(Entry::REFUSED);
        for _ in 0..AGAIN_MAX {
            match self.move_back(address, slot).stopped {
                None => return resident,
                Some(Errno::AGAIN) => sched_yield(),
                // The mapping is gone or has moved: the page is forgotten, or its new place is put
                // down, as soon as that has been followed.
                Some(Errno::NOENT | Errno::SRCH) => break,
                Some(_) => self.broken(),
            }
        }
        // An event is unprocessed, perhaps by a task that waits for this one.
        Entry::new(PageState::Pooled, slot as u64)
    }
}
