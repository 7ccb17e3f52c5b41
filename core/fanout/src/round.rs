//! A group of pages that are carried out together: what is wanted of each, and how that ends.

use core::cell::Cell;
use std::time::Instant;

use crate::counters::add;
use crate::device::Core;
use crate::lender::BATCH_PAGES;
use crate::loss::{Cause, Loss};
use crate::scratch::Scratch;
use crate::seal::Seal;
use crate::slabs::{COPIES, Slab, TARGET};
use crate::table::Known;

/// The bits of a slab's copies, without that of the one that is being made.
const COPY_BITS: u8 = (1 << COPIES) - 1;

/// What is wanted of a page.
#[derive(Debug)]
pub enum Want<'x> {
    /// Its bytes from `start` on.
    Read { room: &'x mut [u8], start: usize },
    /// To hold these bytes, a whole page.
    Write(&'x [u8]),
    /// To be zeros, and take no memory.
    Discard,
    /// To be in the slab's new place as well.
    Copy,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to be sent.
    Open,
    /// An answer is awaited, and decides what is sent next.
    Awaited,
    /// It is as wanted, or all was sent that can be.
    Closed,
    /// It can't be as wanted.
    Failed,
}

/// A page of a round.
#[derive(Debug)]
pub struct Entry<'x> {
    pub page: u64,
    pub want: Want<'x>,
    /// Where its failure is noted.
    failed: &'x Cell<bool>,
    pub progress: Progress,
    /// What the stored page must open with, or what the new one was sealed with.
    pub seal: Option<Seal>,
    /// A copy's sealed bytes are at hand.
    pub fetched: bool,
    /// The file is waited for without a deadline.
    pub is_patient: bool,
    /// Places that were asked, that did it, and that failed: a bit each.
    pub sent: u8,
    pub good: u8,
    pub bad: u8,
    pub causes: [Cause; COPIES + 1],
}

impl Entry<'_> {
    const fn is_alone(&self) -> bool {
        matches!(self.want, Want::Write(_) | Want::Discard)
    }

    /// Notes that a place failed.
    pub const fn note_bad(&mut self, copy: usize, cause: Cause) {
        self.bad |= 1 << copy;
        self.causes[copy] = cause;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Round<'x> {
    entries: [Option<Entry<'x>>; BATCH_PAGES],
    count: usize,
}

impl<'x> Round<'x> {
    pub const fn new() -> Self {
        Self { entries: [const { None }; BATCH_PAGES], count: 0 }
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is room for a page which is not in it yet. Each page is in a round once.
    pub fn takes(&self, page: u64) -> bool {
        self.count < BATCH_PAGES && !self.iter().any(|entry| entry.page == page)
    }

    /// Adds a page.
    pub fn push(&mut self, page: u64, want: Want<'x>, failed: &'x Cell<bool>) {
        let no_cause = Cause::NoAnswer;
        self.entries[self.count] = Some(Entry {
            page,
            want,
            failed,
            progress: Progress::Open,
            seal: None,
            fetched: false,
            is_patient: false,
            sent: 0,
            good: 0,
            bad: 0,
            causes: [no_cause; COPIES + 1],
        });
        self.count += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry<'x>> {
        self.entries[..self.count].iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry<'x>> {
        self.entries[..self.count].iter_mut().flatten()
    }

    /// The entry at a place among the entries.
    pub fn at(&mut self, place: usize) -> &mut Entry<'x> {
        self.entries[place].as_mut().expect("a place that was given")
    }

    pub fn clear(&mut self) {
        self.entries[..self.count].fill_with(|| None);
        self.count = 0;
    }
}

impl Core {
    /// Carries a round out, and empties it.
    pub fn run(&self, round: &mut Round<'_>, scratch: &mut Scratch) {
        if round.is_empty() {
            return;
        }
        let began = Instant::now();
        let slabs = self.slabs();
        let guards = self.locks.take(round.iter().map(|entry| (entry.page, entry.is_alone())));
        self.run_locked(&slabs, round, scratch);
        drop(guards);
        self.tally.note_stall(began.elapsed());
    }

    /// The same for pages whose locks are held.
    pub fn run_locked(&self, slabs: &[Slab], round: &mut Round<'_>, scratch: &mut Scratch) {
        for (place, entry) in round.iter_mut().enumerate() {
            self.prepare(entry, place, scratch);
        }
        while self.wave(slabs, round, scratch) {}
        for entry in round.iter_mut() {
            self.finish(slabs, entry);
        }
        round.clear();
    }

    pub const fn slab_of(&self, page: u64) -> usize {
        (page / self.pages_per_slab()) as usize
    }

    /// Does what needs no holder.
    fn prepare(&self, entry: &mut Entry<'_>, place: usize, scratch: &mut Scratch) {
        match &mut entry.want {
            Want::Write(data) => {
                let page = &mut scratch.sealed[place];
                page.0.copy_from_slice(data);
                entry.seal = Some(self.cipher.seal(entry.page, page));
            }
            Want::Discard => {
                if self.table.set(entry.page, Known::Absent) == Known::Absent {
                    entry.progress = Progress::Closed;
                } else {
                    self.tally.stored_pages.fetch_sub(1, core::sync::atomic::Ordering::Relaxed);
                    add(&self.tally.discards, 1);
                }
            }
            want => match (self.table.get(entry.page), want) {
                (Known::Sealed(seal), _) => entry.seal = Some(seal),
                (Known::Absent, Want::Read { room, .. }) => {
                    room.fill(0);
                    entry.progress = Progress::Closed;
                }
                (Known::Broken, Want::Read { .. }) => entry.progress = Progress::Failed,
                // Nothing that could be copied.
                _ => entry.progress = Progress::Closed,
            },
        }
    }

    /// Draws the conclusions.
    fn finish(&self, slabs: &[Slab], entry: &mut Entry<'_>) {
        let (number, failed) = (self.slab_of(entry.page), entry.progress == Progress::Failed);
        let slab = &slabs[number];
        match entry.want {
            Want::Write(_) => self.finish_write(slabs, entry),
            Want::Discard => {
                // The page is zeros whatever the holders do. One that does not answer holds up nobody twice.
                if entry.bad != 0 {
                    self.give_up(slabs, number, !entry.bad, entry);
                }
            }
            Want::Read { .. } | Want::Copy if failed => self.fail(slab, number, entry),
            Want::Read { .. } | Want::Copy => {
                if entry.bad & COPY_BITS != 0 {
                    add(&self.tally.fail_overs, 1);
                }
                if entry.bad != 0 {
                    self.give_up(slabs, number, entry.good, entry);
                }
            }
        }
    }

    fn finish_write(&self, slabs: &[Slab], entry: &Entry<'_>) {
        let number = self.slab_of(entry.page);
        let good = entry.good & COPY_BITS;
        let stored = good != 0 && (entry.bad == 0 || self.give_up(slabs, number, good, entry));
        let known = match entry.seal {
            Some(seal) if stored => Known::Sealed(seal),
            // Some place may have the new bytes and some the old ones.
            _ => Known::Broken,
        };
        if self.table.set(entry.page, known) == Known::Absent {
            add(&self.tally.stored_pages, 1);
        }
        if !stored {
            self.fail(&slabs[number], number, entry);
        }
    }

    /// Notes that no copy did what was wanted.
    fn fail(&self, slab: &Slab, number: usize, entry: &Entry<'_>) {
        entry.failed.set(true);
        add(&self.tally.errors, 1);
        for copy in (0..COPIES).filter(|copy| entry.bad & 1 << copy != 0) {
            self.tell(slab, number, copy, entry.causes[copy], true);
        }
    }

    /// Does not use the places any more that failed for an entry, since a copy of `good` has the page; false when that is
    /// not so any more, as another thread gave that copy up at the same time.
    fn give_up(&self, slabs: &[Slab], number: usize, good: u8, entry: &Entry<'_>) -> bool {
        let slab = &slabs[number];
        let losing = self.losing.lock();
        if entry.bad & 1 << TARGET != 0 {
            slab.lose(TARGET);
        }
        let live = |copy: &usize| slab.live(*copy).is_some();
        if !(0..COPIES).filter(live).any(|copy| good & 1 << copy != 0) {
            return false;
        }
        for copy in (0..COPIES).filter(|copy| entry.bad & 1 << copy != 0).filter(live) {
            slab.lose(copy);
            self.tell(slab, number, copy, entry.causes[copy], false);
            self.give_up_holder(slabs, slab, copy);
        }
        drop(losing);
        true
    }

    /// Does not use a holder any more wherever another copy is in use, so that no other slab has to wait for it.
    fn give_up_holder(&self, slabs: &[Slab], found_in: &Slab, copy: usize) {
        let Some(gone) = found_in.place(copy) else { return };
        for slab in slabs {
            let with_it = |copy: &usize| slab.live(*copy).is_some_and(|place| place.is_with(gone));
            if let Some(copy) = (0..COPIES).find(with_it)
                && slab.has_other(copy)
            {
                slab.lose(copy);
            }
        }
    }

    /// Tells of a holder once.
    fn tell(&self, slab: &Slab, number: usize, copy: usize, cause: Cause, last_copy: bool) {
        let Some(place) = slab.place(copy) else { return };
        let holder = place.holder.number();
        let loss = Loss { holder, slab: number as u32, cause, last_copy };
        if self.losses.push(loss) && !last_copy {
            add(&self.tally.lost_places, 1);
        }
    }
}
