//! A batch: pages that are processed together, what is wanted of each, and how that ends.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::counters::add;
use crate::device::Core;
use crate::lender::BATCH_PAGES;
use crate::loss::{Cause, Effect, Loss};
use crate::scratch::Scratch;
use crate::seal::Seal;
use crate::slabs::{COPIES, Slab, TARGET};
use crate::table::PageState;

/// The bits of a slab's copies, without the one that is being made.
pub const COPY_BITS: u8 = (1 << COPIES) - 1;

/// The pause before the holders of last copies are asked again. A holder whose connection is cut
/// fails at once.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Every so manieth batch reads from the copies that others read last.
const PROBE_BATCHES: u64 = 64;

/// What a request wants of a page.
#[derive(Debug)]
pub enum Want<'x> {
    /// Read its bytes from `start` on.
    Read { room: &'x mut [u8], start: usize },
    /// Write these bytes, a whole page.
    Write(&'x [u8]),
    /// Make it zeros, and free its memory.
    Discard,
    /// Copy it to the slab's new place.
    Copy,
    /// Copy it to this copy, which is behind.
    Mend(usize),
}

/// How far an entry has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More requests can be sent.
    Open,
    /// An answer is awaited; it decides what is sent next.
    Awaited,
    /// The entry is done, or all requests that can be sent were sent.
    Closed,
    /// The entry has failed.
    Failed,
}

/// A page of a batch.
#[derive(Debug)]
pub struct Entry<'x> {
    pub page: u64,
    pub want: Want<'x>,
    /// Set if the entry fails.
    failed: &'x Cell<bool>,
    pub progress: Progress,
    /// The seal that opens the stored page, or the seal of the new page.
    pub seal: Option<Seal>,
    /// The sealed bytes of a copy are in the scratch buffers.
    pub fetched: bool,
    /// The write to the local file has no deadline.
    pub is_patient: bool,
    /// The copy that is read first.
    pub first: usize,
    /// Copies that lack the page's newest contents: a bit each.
    pub behind: u8,
    /// Copies that a change leaves out because their holder has stopped answering: a bit each.
    pub skipped: u8,
    /// Places to which a request was sent, that did it, and that failed: a bit each.
    pub sent: u8,
    pub good: u8,
    pub bad: u8,
    pub causes: [Cause; COPIES + 1],
}

impl Entry<'_> {
    const fn is_alone(&self) -> bool {
        matches!(self.want, Want::Write(_) | Want::Discard)
    }

    /// Makes the entry as it was before anything was sent for it.
    fn reset(&mut self) {
        self.progress = Progress::Open;
        self.seal = None;
        self.fetched = false;
        self.is_patient = false;
        (self.sent, self.good, self.bad) = (0, 0, 0);
        self.causes.fill(Cause::NoAnswer);
    }

    /// Copies that did not do what was wanted: a bit each.
    const fn missed(&self) -> u8 {
        (self.bad | self.skipped) & COPY_BITS
    }

    /// Whether a copy that failed for the entry lacks the page's newest contents.
    fn makes_behind(&self, copy: usize) -> bool {
        self.is_alone() || self.causes[copy] != Cause::NoAnswer
    }

    /// Whether the entry failed, and a lender that did not answer in time may still do it: its copy
    /// is the last one, or no other copy did it either.
    fn awaits_last_copy(&self, slab: &Slab) -> bool {
        let has_failed = match self.want {
            Want::Read { .. } => self.progress == Progress::Failed,
            // A copy that took it may have been given up meanwhile.
            Want::Write(_) => {
                !(0..COPIES).any(|copy| self.good & 1 << copy != 0 && slab.live(copy).is_some())
            }
            Want::Discard | Want::Copy | Want::Mend(_) => false,
        };
        has_failed && (0..COPIES).any(|copy| self.is_late(slab, copy))
    }

    /// Whether each copy in use has missed the page's newest contents, or failed for one of these causes.
    fn is_gone(&self, slab: &Slab, causes: &[Cause]) -> bool {
        let has_none = |copy: usize| {
            let is_wrong = causes.contains(&self.causes[copy]);
            self.behind & 1 << copy != 0 || self.bad & 1 << copy != 0 && is_wrong
        };
        (0..COPIES).filter(|copy| slab.live(*copy).is_some()).all(has_none)
    }

    /// Whether the copy is in use and lies with a lender that did not answer in time, now or before.
    fn is_late(&self, slab: &Slab, copy: usize) -> bool {
        (self.bad | self.skipped) & 1 << copy != 0
            && self.causes[copy] == Cause::NoAnswer
            && slab.live(copy).is_some_and(|place| place.holder.is_lender())
    }

    /// Records that a place failed.
    pub const fn note_bad(&mut self, copy: usize, cause: Cause) {
        self.bad |= 1 << copy;
        self.causes[copy] = cause;
    }
}

/// The entries of a batch. See the module.
#[derive(Debug)]
pub struct Batch<'x> {
    entries: [Option<Entry<'x>>; BATCH_PAGES],
    count: usize,
}

impl<'x> Batch<'x> {
    pub const fn new() -> Self {
        Self { entries: [const { None }; BATCH_PAGES], count: 0 }
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of pages.
    const fn len(&self) -> usize {
        self.count
    }

    /// Whether the batch has room for the page. A batch has each page at most once.
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
            first: 0,
            behind: 0,
            skipped: 0,
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

    /// The entry with that index.
    pub fn at(&mut self, place: usize) -> &mut Entry<'x> {
        self.entries[place].as_mut().expect("an index of an entry")
    }

    /// Removes the entries for which `keep` returns false.
    fn retain(&mut self, mut keep: impl FnMut(&mut Entry<'x>) -> bool) {
        let mut kept = 0;
        for at in 0..self.count {
            if self.entries[at].as_mut().is_some_and(&mut keep) {
                self.entries.swap(kept, at);
                kept += 1;
            } else {
                self.entries[at] = None;
            }
        }
        self.count = kept;
    }
}

impl Core {
    /// Processes a batch under the locks of its pages, and empties it.
    pub fn run(&self, batch: &mut Batch<'_>, scratch: &mut Scratch) {
        if batch.is_empty() {
            return;
        }
        let began = Instant::now();
        let guards = self.locks.take(batch.iter().map(|entry| (entry.page, entry.is_alone())));
        self.run_locked(batch, scratch);
        drop(guards);
        self.counters.note_stall(began.elapsed());
    }

    /// Like [`Self::run`], for pages whose locks the caller holds.
    ///
    /// An entry whose last copy does not answer is tried again until requests have waited for its
    /// holder for [`Settings::last_copy_wait`](crate::Settings::last_copy_wait), or the copy is gone.
    /// In the pauses, slabs can move and holders be forgotten.
    pub fn run_locked(&self, batch: &mut Batch<'_>, scratch: &mut Scratch) {
        let mut counted = 0;
        let is_probe = self.batches.fetch_add(1, Relaxed) % PROBE_BATCHES == PROBE_BATCHES - 1;
        while !batch.is_empty() {
            let slabs = self.slabs();
            for (place, entry) in batch.iter_mut().enumerate() {
                let slab = &slabs[self.slab_of(entry.page)];
                entry.first = slab.first_source(is_probe);
                self.prepare(entry, place, slab, scratch);
            }
            while self.dispatch(&slabs, batch, scratch) {}
            batch.retain(|entry| {
                let waits = self.may_wait(entry, &slabs[self.slab_of(entry.page)]);
                if waits {
                    self.begin_wait(&slabs, entry);
                } else {
                    self.finish(&slabs, entry);
                }
                waits
            });
            drop(slabs);
            self.counters.note_waiting(&mut counted, batch.len() as u64);
            if !batch.is_empty() {
                thread::sleep(RETRY_PAUSE);
            }
        }
    }

    /// Whether an entry is tried again. The time runs from the first request that waited for the
    /// holder, so that all that are queued behind one another end together.
    fn may_wait(&self, entry: &Entry<'_>, slab: &Slab) -> bool {
        let wait = self.settings.last_copy_wait;
        entry.awaits_last_copy(slab)
            && (0..COPIES).filter(|copy| entry.is_late(slab, *copy)).any(|copy| {
                let place = slab.place(copy);
                place.is_some_and(|place| self.losses.waited(place.holder.number()) < wait)
            })
    }

    /// Reports the lenders that an entry waits for, and makes it ready for the next try.
    fn begin_wait(&self, slabs: &[Slab], entry: &mut Entry<'_>) {
        let number = self.slab_of(entry.page);
        let slab = &slabs[number];
        for copy in (0..COPIES).filter(|copy| entry.is_late(slab, *copy)) {
            self.report_loss(slab, number, copy, entry.causes[copy], Effect::Wait);
        }
        entry.reset();
    }

    pub const fn slab_of(&self, page: u64) -> usize {
        (page / self.pages_per_slab()) as usize
    }

    /// Does what needs no holder: seals, looks up seals, and fills pages that are not stored.
    fn prepare(&self, entry: &mut Entry<'_>, place: usize, slab: &Slab, scratch: &mut Scratch) {
        entry.behind = self.behind.of(entry.page);
        match &mut entry.want {
            Want::Write(data) => {
                let page = &mut scratch.sealed[place];
                page.0.copy_from_slice(data);
                entry.seal = Some(self.cipher.seal(entry.page, page));
                entry.skipped = slab.stalled();
            }
            Want::Discard => {
                if self.table.set(entry.page, PageState::Absent) == PageState::Absent {
                    entry.progress = Progress::Closed;
                } else {
                    self.counters.stored_pages.fetch_sub(1, Relaxed);
                    add(&self.counters.discards, 1);
                    entry.skipped = slab.stalled();
                }
            }
            want => match (self.table.get(entry.page), want) {
                (PageState::Sealed(seal), _) => entry.seal = Some(seal),
                (PageState::Absent, Want::Read { room, .. }) => {
                    room.fill(0);
                    entry.progress = Progress::Closed;
                }
                (PageState::Broken, Want::Read { .. }) => entry.progress = Progress::Failed,
                // The copy's old contents are removed.
                (PageState::Absent, Want::Mend(_)) => {}
                (PageState::Broken, Want::Mend(copy)) => {
                    self.behind.clear(entry.page, *copy);
                    entry.progress = Progress::Closed;
                }
                // There is nothing to copy.
                _ => entry.progress = Progress::Closed,
            },
        }
    }

    /// Records the result of an entry, and gives up the places that failed.
    fn finish(&self, slabs: &[Slab], entry: &mut Entry<'_>) {
        let (number, failed) = (self.slab_of(entry.page), entry.progress == Progress::Failed);
        let slab = &slabs[number];
        if self.losses.has_waits() {
            self.report_answers(slab, entry);
        }
        match entry.want {
            Want::Write(_) => self.finish_write(slabs, entry),
            Want::Discard => {
                // The page is zeros whatever the holders do. A holder that does not answer is left out
                // from then on, so that it delays only one batch.
                if (entry.bad | entry.skipped) != 0 {
                    self.give_up(slabs, number, !(entry.bad | entry.skipped), entry);
                }
            }
            // A copy that gives wrong bytes may give the right ones later.
            Want::Mend(_) if failed && entry.is_gone(slab, &[Cause::Missing]) => {
                self.lose_page(slab, number, entry);
            }
            Want::Mend(copy) => self.finish_mend(slabs, copy, entry),
            Want::Copy if failed && entry.is_gone(slab, &[Cause::Missing, Cause::Forged]) => {
                self.lose_page(slab, number, entry);
            }
            Want::Read { .. } | Want::Copy if failed => self.fail(slab, number, entry),
            Want::Read { .. } | Want::Copy => {
                if entry.bad & COPY_BITS != 0 {
                    add(&self.counters.fail_overs, 1);
                }
                if entry.fetched && entry.good & 1 << TARGET != 0 {
                    add(&self.counters.moved_pages, 1);
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
        for copy in (0..COPIES).filter(|copy| good & 1 << copy != 0) {
            self.behind.clear(entry.page, copy);
        }
        let is_whole = entry.bad | entry.skipped == 0;
        let stored = good != 0 && (is_whole || self.give_up(slabs, number, good, entry));
        let known = match entry.seal {
            Some(seal) if stored => PageState::Sealed(seal),
            // Some places may have the new bytes and others the old ones.
            _ => PageState::Broken,
        };
        if self.table.set(entry.page, known) == PageState::Absent {
            add(&self.counters.stored_pages, 1);
        }
        if !stored {
            self.fail(&slabs[number], number, entry);
        }
    }

    fn finish_mend(&self, slabs: &[Slab], copy: usize, entry: &Entry<'_>) {
        if entry.good & 1 << copy != 0 {
            self.behind.clear(entry.page, copy);
            add(&self.counters.mended_pages, 1);
        }
        if entry.bad != 0 {
            self.give_up(slabs, self.slab_of(entry.page), entry.good, entry);
        }
    }

    /// Records that a page is lost, so that the move of its slab goes on without it, and nobody tries to mend it.
    fn lose_page(&self, slab: &Slab, number: usize, entry: &Entry<'_>) {
        self.table.set(entry.page, PageState::Broken);
        self.report_failure(slab, number, entry);
    }

    /// Records that no copy could do what was wanted.
    fn fail(&self, slab: &Slab, number: usize, entry: &Entry<'_>) {
        entry.failed.set(true);
        self.report_failure(slab, number, entry);
    }

    fn report_failure(&self, slab: &Slab, number: usize, entry: &Entry<'_>) {
        add(&self.counters.errors, 1);
        for copy in (0..COPIES).filter(|copy| entry.bad & 1 << copy != 0) {
            self.report_loss(slab, number, copy, entry.causes[copy], Effect::Error);
        }
    }

    /// Gives up the places that failed for an entry, as long as a copy of `good` still has the
    /// page. Returns false if none does: another thread gave that copy up at the same time.
    ///
    /// A copy whose holder does not answer stays in use, without this page, for
    /// [`Settings::stall_max`](crate::Settings::stall_max); and so does one that has pages which the other copy
    /// lacks.
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
        for copy in (0..COPIES).filter(|copy| entry.missed() & 1 << copy != 0).filter(live) {
            let cause = entry.causes[copy];
            let pulse = slab.place(copy).map(|place| place.holder.pulse());
            if entry.skipped & 1 << copy != 0
                && let Some(pulse) = pulse
            {
                pulse.left_out();
            }
            let may_answer = cause == Cause::NoAnswer
                && pulse.is_some_and(|it| it.unwritten_for() < self.settings.stall_max);
            if !may_answer && self.is_complete_without(slabs, number, copy) {
                self.give_up_holder(slabs, number, copy);
                self.report_loss(slab, number, copy, cause, Effect::FailOver);
                continue;
            }
            if entry.makes_behind(copy) {
                self.behind.set(entry.page, copy);
                self.mending.wake();
            }
            self.report_loss(slab, number, copy, cause, Effect::Behind);
        }
        drop(losing);
        true
    }

    /// Gives up a copy whose holder has not answered for too long, if the other copy has all pages and its holder
    /// answers.
    pub fn give_up_stalled(&self, slabs: &[Slab], number: usize, copy: usize) {
        let _losing = self.losing.lock();
        let Some(place) = slabs[number].live(copy) else { return };
        let is_over = place.holder.pulse().unwritten_for() >= self.settings.stall_max;
        let other_stalls =
            slabs[number].live(1 - copy).is_some_and(|place| place.holder.pulse().is_stalled());
        if is_over && !other_stalls && self.is_complete_without(slabs, number, copy) {
            self.give_up_holder(slabs, number, copy);
            self.report_loss(&slabs[number], number, copy, Cause::Away, Effect::FailOver);
        }
    }

    /// Whether the other copy of a slab is in use and has all its pages.
    fn is_complete_without(&self, slabs: &[Slab], number: usize, copy: usize) -> bool {
        let other = |other: &usize| *other != copy && slabs[number].live(*other).is_some();
        (0..COPIES).filter(other).any(|other| self.behind.count(number, other) == 0)
    }

    /// Gives up a holder in every slab whose other copy has all pages, so that no other slab waits for it. Whoever hears
    /// of the loss then finds all copies that are lost.
    fn give_up_holder(&self, slabs: &[Slab], found_in: usize, copy: usize) {
        let Some(gone) = slabs[found_in].place(copy) else { return };
        for (number, slab) in slabs.iter().enumerate() {
            let with_it = |copy: &usize| slab.live(*copy).is_some_and(|place| place.is_with(gone));
            if let Some(copy) = (0..COPIES).find(with_it)
                && self.is_complete_without(slabs, number, copy)
            {
                slab.lose(copy);
                self.behind.clear_slab(number, copy);
            }
        }
    }

    /// Reports the loss of a holder, once.
    fn report_loss(&self, slab: &Slab, number: usize, copy: usize, cause: Cause, effect: Effect) {
        let Some(place) = slab.place(copy) else { return };
        let holder = place.holder.number();
        let loss = Loss { holder, slab: number as u32, cause, effect };
        if self.losses.push(loss) && effect == Effect::FailOver {
            add(&self.counters.lost_places, 1);
        }
    }

    /// Reports that holders that were waited for have answered.
    fn report_answers(&self, slab: &Slab, entry: &Entry<'_>) {
        for copy in (0..COPIES).filter(|copy| entry.good & 1 << copy != 0) {
            if let Some(place) = slab.place(copy) {
                let is_written = place.holder.pulse().unwritten_for().is_zero();
                self.losses.note_answer(place.holder.number(), is_written);
            }
        }
    }
}
