//! Calls from the program's own threads: which memory to manage, and what they do to it.

use crate::pager::Pager;
use crate::places::PROGRAM_PLACE;
use crate::registrar_slot::Task;
use crate::rest::Work;
use crate::table::{Entry, PageState};
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::{advise, residency};
use spillway_platform::task::SignalsBlocked;
use std::sync::atomic::{AtomicU8, Ordering};

/// See [`Pager::program_work`]. Fields are dropped in order: signals come last.
pub(crate) struct ProgramWork<'a> {
    _work: Work<'a>,
    _blocked: SignalsBlocked,
}

/// The pages of a range, by their first addresses.
fn pages(start: usize, end: usize) -> impl Iterator<Item = usize> {
    (start / PAGE_SIZE * PAGE_SIZE..end).step_by(PAGE_SIZE)
}

impl Pager {
    /// A piece of work on one of the program's threads: a fork waits until it is done, no signal
    /// interrupts it, and earlier changes of mappings have been processed.
    pub(crate) fn program_work(&self) -> ProgramWork<'_> {
        let blocked = SignalsBlocked::new();
        let work = self.rest.work(PROGRAM_PLACE);
        self.wait_for_events();
        ProgramWork { _work: work, _blocked: blocked }
    }

    /// Takes a private anonymous mapping into management. Pages that are there already count and
    /// may leave like any other: they are looked for, which takes microseconds for each 2 MiB.
    ///
    /// # Errors
    /// The kernel's error if it can't be registered; then it stays native.
    pub fn manage(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        self.manage_with(start, bytes, || self.adopt_resident(start, start + bytes))
    }

    /// As [`Self::manage`], of a mapping that only the caller knows yet: it has no pages. Databases reserve
    /// terabytes in this way.
    ///
    /// # Errors
    /// As [`Self::manage`].
    pub fn manage_untouched(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        self.manage_with(start, bytes, || ())
    }

    fn manage_with(&self, start: usize, bytes: usize, adopt: impl Fn()) -> Result<(), Errno> {
        let end = start + bytes;
        let _work = self.work_beside_moves(start, end);
        self.regions.lock().remove(start, end);
        self.forget(start, end);
        let _ = advise(start, bytes, Advice::LinuxNoHugepage);
        advise(start, bytes, Advice::LinuxDontFork)?;
        if let Err(errno) = self.registrar_slot.ask(Task::Register, start, bytes) {
            let _ = advise(start, bytes, Advice::LinuxDoFork);
            return Err(errno);
        }
        adopt();
        self.regions.lock().insert(start, end);
        Ok(())
    }

    /// Counts the pages of a new range that were there before it was registered.
    fn adopt_resident(&self, start: usize, end: usize) {
        let mut present = [0u8; 512];
        for from in (start..end).step_by(present.len() * PAGE_SIZE) {
            let count = ((end - from) / PAGE_SIZE).min(present.len());
            if residency(from, &mut present[..count]).is_err() {
                continue;
            }
            for address in (0..count).filter(|&k| present[k] & 1 != 0).map(|k| from + k * PAGE_SIZE)
            {
                let Some(leaf) = self.table.leaf(address) else { return };
                let resident = Entry::new(PageState::Resident, 0);
                if leaf.exchange(crate::table::place(address), Entry::NONE, resident) {
                    leaf.resident.fetch_add(1, Ordering::Relaxed);
                    self.charge(1);
                }
            }
        }
    }

    /// Whether any part of a range is managed.
    #[must_use]
    pub fn is_managed(&self, start: usize, end: usize) -> bool {
        let _work = self.program_work();
        self.overlaps(start, end)
    }

    pub(crate) fn overlaps(&self, start: usize, end: usize) -> bool {
        self.regions.lock().overlaps(start, end).next().is_some()
    }

    /// Makes a range native again: all its pages come in and stay.
    ///
    /// # Errors
    /// When pages can't be brought in.
    pub fn unmanage(&self, start: usize, end: usize) -> Result<(), Errno> {
        self.lock(start, end, true);
        // An eviction in progress may have chosen a page of the range before it was locked.
        drop(self.staging.turn());
        let parts: Vec<_> = {
            let _work = self.program_work();
            self.regions.lock().overlaps(start, end).collect()
        };
        for (start, end) in parts {
            if let Err(errno) = self.bring_in(start, end) {
                self.lock(start, end, false);
                return Err(errno);
            }
            let _work = self.program_work();
            self.registrar_slot.ask(Task::Unregister, start, end - start)?;
            self.regions.lock().remove(start, end);
            self.forget(start, end);
            advise(start, end - start, Advice::LinuxDoFork)?;
        }
        Ok(())
    }

    /// Brings in what is far of a range; pages that were never touched stay absent.
    fn bring_in(&self, start: usize, end: usize) -> Result<(), Errno> {
        let mut result = Ok(());
        self.table.for_each(start, end, |page, leaf, at| {
            let here = matches!(leaf.load(at).state(), PageState::Untouched | PageState::Resident);
            if !here && result.is_ok() {
                result = advise(page, PAGE_SIZE, Advice::LinuxPopulateRead);
            }
        });
        result
    }

    /// The program locked a range: its pages stay resident, and count.
    pub fn lock(&self, start: usize, end: usize, locked: bool) {
        let _work = self.program_work();
        self.regions.lock().change(start, end, |region| region.locked = locked);
    }

    /// Keeps the pages from `start` to `end` resident and writable, until [`Self::let_go`] was called as often, or
    /// they are unmapped: the kernel answers no faults of an ending thread.
    pub fn keep_near(&self, start: usize, end: usize) {
        for page in pages(start, end) {
            {
                let _work = self.program_work();
                if !self.overlaps(page, page + PAGE_SIZE) {
                    continue;
                }
                self.regions.lock().keep(page);
                // An eviction under way may have chosen the page before.
                drop(self.staging.turn());
            }
            // SAFETY: memory of the program's that it is about to use; no bit of it changes.
            unsafe { AtomicU8::from_ptr(page.max(start) as *mut u8) }
                .fetch_or(0, Ordering::Relaxed);
        }
    }

    /// Ends one [`Self::keep_near`].
    pub fn let_go(&self, start: usize, end: usize) {
        let _work = self.program_work();
        for page in pages(start, end) {
            self.regions.lock().let_go(page);
        }
    }

    /// The program asked that children get a range, or do not.
    pub fn keep_from_children(&self, start: usize, end: usize, keep: bool) {
        let _work = self.program_work();
        self.regions.lock().change(start, end, |region| region.dont_fork = keep);
    }

    /// Work on a range that no thread is moving away. It is not waited for at work, for a fork waits
    /// for work, and a move for messages that are not read meanwhile.
    fn work_beside_moves(&self, start: usize, end: usize) -> ProgramWork<'_> {
        loop {
            let work = self.program_work();
            if !self.change.ranges.overlap(start, end) {
                return work;
            }
            drop(work);
            sched_yield();
        }
    }

    /// See [`crate::tree::Settings::address_space_bytes`].
    #[must_use]
    pub fn address_space_bytes(&self) -> u64 {
        self.settings.address_space_bytes
    }

    /// The program locked all its memory: managed memory stays pageable, which is reported.
    pub fn say_mlockall(&self) {
        let pid = self.slot.pid.load(Ordering::Relaxed);
        self.tree.notify(crate::tree::Notice::MlockAll, pid, 0);
    }

    /// The program tried to hand paged guest memory to another process, which is refused.
    pub fn say_guest_ram_shared(&self) {
        let pid = self.slot.pid.load(Ordering::Relaxed);
        self.tree.notify(crate::tree::Notice::GuestRamShared, pid, 0);
    }
}
