//! Answers faults: the page's entry says where it is, and each place has its own path in.
//!
//! The first task marks the entry [`PageState::Filling`]. Any other task that meets the mark sets
//! [`Entry::WAITED`] and lets the thread sleep until it is woken.

use crate::batched_counters::Count;
use crate::buffers::Buffers;
use crate::costs::TIMED_ONE_IN;
use crate::pager::Pager;
use crate::record::Asked;
use crate::table::{Entry, Leaf, PageState, WINDOW_PAGES, place};
use crate::tree::Notice;
use rustix::io::Errno;
use rustix::mm::Advice;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::advise;
use spillway_platform::uffd::Done;
use spillway_store::Error as StoreError;
use spillway_tiers::PageBuf;
use std::sync::atomic::Ordering;

/// A fault as its handler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The page, by its first address.
    pub address: usize,
    /// The program wanted to write.
    pub write: bool,
    /// The page is there and write-protected.
    pub protected: bool,
}

/// Zeros to fill fresh pages from.
static ZEROS: [PageBuf; crate::streams::MOST_AHEAD] =
    [const { PageBuf::ZERO }; crate::streams::MOST_AHEAD];

impl Pager {
    /// Answers a fault. When this returns the faulting thread continues, faults again, or sleeps
    /// until the task that works on its page wakes it.
    pub fn answer(&self, fault: Fault, buffers: &mut Buffers) {
        let at = place(fault.address);
        let Some(leaf) = self.table.leaf(fault.address) else { self.broken() };
        loop {
            let seen = leaf.load(at);
            let answered = match seen.state() {
                PageState::Untouched => self.first_touch(leaf, fault.address, buffers),
                PageState::Far => self.fetch(leaf, seen, fault, buffers),
                PageState::Resident if fault.protected => {
                    self.first_write(leaf, seen, fault.address, buffers)
                }
                PageState::Resident => self.already_there(leaf, seen, fault.address),
                PageState::Pooled => self.rescue(leaf, seen, fault.address, buffers),
                PageState::Filling | PageState::Leaving => {
                    leaf.exchange(at, seen, seen.with(Entry::WAITED))
                }
                PageState::Poisoned => {
                    self.poison(fault.address);
                    true
                }
            };
            if answered {
                return;
            }
        }
    }

    /// Marks the page as being filled by the caller.
    fn begin_filling(leaf: &Leaf, at: usize, seen: Entry) -> bool {
        leaf.exchange(at, seen, seen.to(PageState::Filling))
    }

    /// Removes the mark and wakes the threads that waited meanwhile.
    fn settle(&self, leaf: &Leaf, address: usize, new: Entry) {
        if leaf.settle(place(address), new) {
            self.main().wake(address, PAGE_SIZE);
        }
    }

    /// Fills a page that was never touched, and those after it when a walk touches one after the
    /// other.
    fn first_touch(&self, leaf: &Leaf, address: usize, buffers: &mut Buffers) -> bool {
        let at = place(address);
        if !Self::begin_filling(leaf, at, Entry::NONE) {
            return false;
        }
        let wanted = self.ahead(address).filter(|ahead| ahead.stride == 1).map_or(1, |a| a.count);
        let mut count = 1;
        let room = self.room_after(address, wanted);
        while count < room && Self::begin_filling(leaf, at + count, Entry::NONE) {
            count += 1;
        }
        self.admit(count as i64, buffers);
        let mut done = self.main().copy(address, ZEROS.as_ptr().cast(), count * PAGE_SIZE, false);
        if done.bytes == 0 && count > 1 {
            // The mapping may end or change inside the run: then fill only the faulting page.
            done = self.main().copy(address, ZEROS.as_ptr().cast(), PAGE_SIZE, false);
        }
        self.must_be_open(done.stopped);
        let there = done.stopped == Some(Errno::EXIST) && done.bytes == 0;
        let filled = if there { 1 } else { done.bytes / PAGE_SIZE };
        leaf.resident.fetch_add(filled as i32, Ordering::Relaxed);
        buffers.credit_pages += (count - filled) as i64;
        for k in 0..count {
            let new = if k < filled { Entry::new(PageState::Resident, 0) } else { Entry::NONE };
            self.settle(leaf, address + k * PAGE_SIZE, new);
        }
        if filled == 0 || there {
            self.main().wake(address, PAGE_SIZE);
        }
        buffers.counters.count(Count::FirstTouches, filled as u64);
        true
    }

    /// How far to prefetch; None if prefetching is off.
    fn ahead(&self, address: usize) -> Option<crate::streams::Ahead> {
        (self.settings.prefetch != 0).then(|| self.streams.fault(address / PAGE_SIZE))
    }

    /// How many of `wanted` pages from this address on lie in its window and region.
    fn room_after(&self, address: usize, wanted: usize) -> usize {
        let in_window = WINDOW_PAGES - address / PAGE_SIZE % WINDOW_PAGES;
        let wanted = wanted.min(in_window).min(self.most_ahead());
        if wanted <= 1 {
            return 1;
        }
        let end = self.regions.lock().find(address).map_or(address, |region| region.end);
        wanted.min(end.saturating_sub(address) / PAGE_SIZE).max(1)
    }

    /// With a small budget, no pages come ahead of need, and none while the blade does not answer: a
    /// page that nobody needs is not worth a wait.
    fn most_ahead(&self) -> usize {
        if self.store.blade().is_some_and(|blade| !blade.answers()) {
            return 1;
        }
        (self.budget_pages() as usize / 64).max(1)
    }

    /// Brings a page in from the store, and those ahead of it if a walk continues.
    fn fetch(&self, leaf: &Leaf, seen: Entry, fault: Fault, buffers: &mut Buffers) -> bool {
        if !Self::begin_filling(leaf, place(fault.address), seen) {
            return false;
        }
        let ahead = self.ahead(fault.address);
        match ahead {
            Some(ahead) if ahead.count > 1 && ahead.stride == 1 => {
                self.fetch_run(leaf, seen, fault, ahead.count, buffers);
            }
            _ => {
                self.admit(1, buffers);
                self.fill_from_store(leaf, seen, fault, buffers);
            }
        }
        if let Some(ahead) = ahead.filter(|a| a.count > 1 && a.stride != 1) {
            self.fetch_strided(fault.address, ahead, buffers);
        }
        buffers.counters.count(Count::Fetches, 1);
        true
    }

    /// Reads one marked page and fills it. True when the page is there now; otherwise a thread that
    /// touches it gets SIGBUS.
    fn fill_from_store(
        &self,
        leaf: &Leaf,
        seen: Entry,
        fault: Fault,
        buffers: &mut Buffers,
    ) -> bool {
        self.try_to_fill(leaf, seen, fault, buffers).unwrap_or_else(|error| {
            self.lose(leaf, seen, fault.address, &error, buffers);
            false
        })
    }

    /// Reads one marked page and fills it; whether it is there now. After an error it stays marked.
    fn try_to_fill(
        &self,
        leaf: &Leaf,
        seen: Entry,
        fault: Fault,
        buffers: &mut Buffers,
    ) -> Result<bool, StoreError> {
        let Fault { address, write, .. } = fault;
        let timed = seen.handle().is_multiple_of(TIMED_ONE_IN);
        let began_ns = if timed { crate::link::now_ns() } else { 0 };
        self.link.transfer(1);
        let key = Self::key(seen.handle());
        let scratch = buffers.page.0.as_ptr();
        let Some(page) = self.store.read_page(self.pool, key, &mut buffers.page)? else {
            self.broken()
        };
        if timed {
            self.costs.saw_fetch(crate::link::now_ns() - began_ns);
        }
        // A copy is kept where making it anew is dear: not of a page stored as it is, which one copy
        // makes again, and which takes a whole frame meanwhile.
        let is_dear = page.as_ptr() == scratch && self.store.copy_pays(page.tier());
        let protect = !write && is_dear && self.clean_pays();
        let done = self.main().copy(address, page.as_ptr(), PAGE_SIZE, protect);
        drop(page);
        Ok(self.arrive(leaf, seen, address, protect, done.stopped, buffers))
    }

    /// A prefetch failed: the page stays far.
    fn stay_far(&self, leaf: &Leaf, seen: Entry, address: usize, buffers: &mut Buffers) {
        buffers.credit_pages += 1;
        self.settle(leaf, address, seen.to(PageState::Far));
        self.main().wake(address, PAGE_SIZE);
    }

    /// In the in-thread mode the program can close the userfaultfd, or open something else under its
    /// number: then no page can come in any more.
    fn must_be_open(&self, stopped: Option<Errno>) {
        if matches!(stopped, Some(Errno::BADF | Errno::NOTTY)) {
            self.broken();
        }
    }

    /// Sets a page's entry after an attempt to fill it.
    fn arrive(
        &self,
        leaf: &Leaf,
        seen: Entry,
        address: usize,
        protect: bool,
        stopped: Option<Errno>,
        buffers: &mut Buffers,
    ) -> bool {
        let handle = seen.handle();
        self.must_be_open(stopped);
        if let Some(errno) = stopped.filter(|&errno| errno != Errno::EXIST) {
            // An event is unread, or the mapping is gone: the thread faults again.
            buffers.credit_pages += 1;
            leaf.settle(place(address), seen.to(PageState::Far));
            if errno != Errno::SRCH {
                self.main().wake(address, PAGE_SIZE);
            }
            return false;
        }
        leaf.resident.fetch_add(1, Ordering::Relaxed);
        self.note_near(seen);
        if protect && stopped.is_none() {
            self.costs.saw_clean_read();
            self.record(Asked::Get, handle);
            self.settle(leaf, address, Entry::new(PageState::Resident, handle).with(Entry::CLEAN));
        } else {
            self.record(Asked::Take, handle);
            self.settle(leaf, address, Entry::new(PageState::Resident, 0));
            self.drop_later(handle, buffers.counters);
        }
        if stopped.is_some() {
            self.main().wake(address, PAGE_SIZE);
        }
        true
    }

    /// Brings in a run of far pages by one transfer into the program.
    fn fetch_run(
        &self,
        leaf: &Leaf,
        seen: Entry,
        fault: Fault,
        want: usize,
        buffers: &mut Buffers,
    ) {
        let at = place(fault.address);
        let room = self.room_after(fault.address, want);
        let mut entries = [seen; crate::streams::MOST_AHEAD];
        let mut count = 1;
        while count < room {
            let next = leaf.load(at + count);
            if next.state() != PageState::Far || !Self::begin_filling(leaf, at + count, next) {
                break;
            }
            entries[count] = next;
            count += 1;
        }
        self.admit(count as i64, buffers);
        let began_ns = crate::link::now_ns();
        self.link.transfer(count);
        let (read, stay) = self.read_run(&entries[..count], buffers);
        self.costs.saw_fetch((crate::link::now_ns() - began_ns) / count as u64);
        if read == 0 {
            for (k, &entry) in entries[..count].iter().enumerate().skip(1) {
                self.stay_far(leaf, entry, fault.address + k * PAGE_SIZE, buffers);
            }
            self.fill_from_store(leaf, seen, fault, buffers);
            return;
        }
        let protect = !fault.write && stay * 2 > read && self.clean_pays();
        let source = buffers.run.as_ptr().cast();
        let done = self.main().copy(fault.address, source, read * PAGE_SIZE, protect);
        let filled = done.bytes / PAGE_SIZE;
        for (k, &entry) in entries[..count].iter().enumerate() {
            let address = fault.address + k * PAGE_SIZE;
            if k < filled {
                self.arrive(leaf, entry, address, protect, None, buffers);
            } else if k == filled && done.stopped == Some(Errno::EXIST) {
                self.arrive(leaf, entry, address, protect, done.stopped, buffers);
            } else {
                self.stay_far(leaf, entry, address, buffers);
            }
        }
        buffers.counters.count(Count::Prefetches, filled.saturating_sub(1) as u64);
    }

    /// Reads a run of pages into the task's buffers, up to the first that does not come. Gives how
    /// many came, and of how many of them a copy should stay in the store.
    fn read_run(&self, entries: &[Entry], buffers: &mut Buffers) -> (usize, usize) {
        if self.store.blade().is_some() {
            let mut keys = [Self::key(0); crate::streams::MOST_AHEAD];
            for (key, entry) in keys.iter_mut().zip(entries) {
                *key = Self::key(entry.handle());
            }
            return self.store.read_run(self.pool, &keys[..entries.len()], &mut buffers.run);
        }
        let mut stay = 0;
        let scratch = buffers.page.0.as_ptr();
        for (read, (entry, room)) in entries.iter().zip(&mut buffers.run).enumerate() {
            match self.store.read_page(self.pool, Self::key(entry.handle()), &mut buffers.page) {
                Ok(Some(page)) => {
                    stay += usize::from(page.as_ptr() == scratch);
                    room.0.copy_from_slice(&*page);
                }
                Ok(None) => self.broken(),
                Err(_) => return (read, stay),
            }
        }
        (entries.len(), stay)
    }

    /// Brings in the pages that a strided walk will touch next.
    fn fetch_strided(&self, from: usize, ahead: crate::streams::Ahead, buffers: &mut Buffers) {
        for k in 1..ahead.count.min(self.most_ahead()) as i64 {
            let address =
                from.wrapping_add_signed((k * ahead.stride) as isize * PAGE_SIZE as isize);
            let Some(leaf) = self.table.find(address) else { return };
            let entry = leaf.load(place(address));
            if entry.state() == PageState::Far && Self::begin_filling(leaf, place(address), entry) {
                self.admit(1, buffers);
                let ahead = Fault { address, write: false, protected: false };
                match self.try_to_fill(leaf, entry, ahead, buffers) {
                    Ok(filled) => buffers.counters.count(Count::Prefetches, u64::from(filled)),
                    Err(_) => return self.stay_far(leaf, entry, address, buffers),
                }
            }
        }
    }

    /// The page's bytes failed their checksum or are lost: touching it is a SIGBUS, never wrong
    /// bytes.
    fn lose(
        &self,
        leaf: &Leaf,
        seen: Entry,
        address: usize,
        error: &StoreError,
        buffers: &mut Buffers,
    ) {
        buffers.credit_pages += 1;
        self.note_near(seen);
        self.flush(seen.handle());
        let (counter, notice) = match error {
            StoreError::Gone => (&self.counters().lost_pages, Notice::Gone),
            _ => (&self.counters().corrupt_reads, Notice::Corrupt),
        };
        let first = counter.fetch_add(1, Ordering::Relaxed) == 0;
        if notice == Notice::Corrupt || first {
            self.tree.notify(notice, self.slot.pid.load(Ordering::Relaxed), address as u64);
        }
        self.poison(address);
        self.settle(leaf, address, Entry::new(PageState::Poisoned, 0));
    }

    fn poison(&self, address: usize) {
        if self.main().poison(address).is_err() {
            self.main().wake(address, PAGE_SIZE);
        }
    }

    /// First write to a clean page: the store's copy is stale from now on.
    fn first_write(&self, leaf: &Leaf, seen: Entry, address: usize, buffers: &mut Buffers) -> bool {
        if seen.has(Entry::CLEAN) {
            let dirty = seen.without(Entry::CLEAN).without(u64::MAX << 16);
            if !leaf.exchange(place(address), seen, dirty) {
                return false;
            }
            self.flush_later(seen.handle(), buffers.counters);
            self.costs.saw_clean_write();
            buffers.counters.count(Count::WriteFaults, 1);
        }
        if self.main().unprotect(address, PAGE_SIZE).is_err() {
            self.main().wake(address, PAGE_SIZE);
        }
        true
    }

    /// A fault on a page that should be resident: another task answered first, or the program
    /// dropped the page by advice, after which it reads as zero.
    fn already_there(&self, leaf: &Leaf, seen: Entry, address: usize) -> bool {
        if !Self::begin_filling(leaf, place(address), seen) {
            return false;
        }
        let done = self.main().copy(address, ZEROS.as_ptr().cast(), PAGE_SIZE, false);
        let dropped = done.stopped.is_none();
        let new = if dropped { Entry::new(PageState::Resident, 0) } else { seen };
        self.settle(leaf, address, new);
        if dropped && seen.has(Entry::INHERITED) {
            self.charge(1);
        }
        if dropped && seen.has(Entry::CLEAN) {
            self.flush(seen.handle());
        }
        if !dropped {
            self.main().wake(address, PAGE_SIZE);
        }
        true
    }

    /// Moves a page from staging back to its place. A mapping that pages can't be moved to, read-only
    /// say, takes a copy; and so does a page that was in the pool at a fork, for the kernel moves none
    /// that was ever shared.
    pub(crate) fn move_back(&self, address: usize, slot: usize) -> Done {
        let staged = self.staging.slot_address(slot);
        let done = self.main().move_in(address, staged);
        match done.stopped {
            // It may have come back anyway: see `Uffd::move_out`.
            Some(Errno::EXIST) => {
                let _turn = self.staging.turn();
                if self.is_staged(slot) {
                    return done;
                }
                self.main().wake(address, PAGE_SIZE);
                Done { bytes: PAGE_SIZE, stopped: None }
            }
            Some(Errno::INVAL | Errno::BUSY) => {
                let done = self.main().copy(address, staged as *const u8, PAGE_SIZE, false);
                if done.stopped.is_none() {
                    let _ = advise(staged, PAGE_SIZE, Advice::LinuxDontNeed);
                }
                done
            }
            _ => done,
        }
    }

    /// Moves a page back from the victim pool, without a transfer.
    fn rescue(&self, leaf: &Leaf, seen: Entry, address: usize, buffers: &mut Buffers) -> bool {
        if !Self::begin_filling(leaf, place(address), seen) {
            return false;
        }
        let slot = seen.handle() as usize;
        let stale = self.staging.note(slot).handle.load(Ordering::Acquire);
        let timed = seen.handle().is_multiple_of(TIMED_ONE_IN);
        let began_ns = if timed { crate::link::now_ns() } else { 0 };
        if self.move_back(address, slot).stopped.is_some() {
            leaf.settle(place(address), seen);
            self.main().wake(address, PAGE_SIZE);
            return true;
        }
        if timed {
            self.costs.saw_rescue(crate::link::now_ns() - began_ns);
        }
        self.staging.note(slot).address.store(0, Ordering::Release);
        leaf.resident.fetch_add(1, Ordering::Relaxed);
        self.settle(leaf, address, Entry::new(PageState::Resident, 0));
        if stale != 0 {
            self.flush_later(stale, buffers.counters);
        }
        buffers.counters.count(Count::Rescues, 1);
        true
    }

    /// Counts pages in that are about to arrive, and makes room for them.
    fn admit(&self, pages: i64, buffers: &mut Buffers) {
        buffers.credit_pages -= pages;
        if buffers.credit_pages >= 0 {
            return;
        }
        let more = self.credit_pages() - buffers.credit_pages;
        buffers.credit_pages += more;
        let over = self.charge(more);
        if self.pre_evicts() && !self.is_crowded() && self.excess(self.budget_less_reserve(2)) > 0 {
            self.want_eviction();
        }
        if over {
            self.make_room(&mut buffers.packer);
        }
    }

    /// Pages that a task counts in ahead of need.
    fn credit_pages(&self) -> i64 {
        (self.budget_pages() / 512).min(16) as i64
    }
}
