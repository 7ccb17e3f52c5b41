//! Chooses and evicts victims.
//!
//! A clock hand cycles over the addresses and takes a window of 64 pages at a time. Its resident pages
//! are marked [`PageState::Leaving`] and moved to staging by one call; from there `retire` writes them
//! to the store, at once or after a wait in the victim pool.

use crate::choice::{STEP_NS, Step, pages_in};
use crate::pager::Pager;
use crate::places::EVICTOR_PLACE;
use crate::quiesce::Slept;
use crate::retire::Memory;
use crate::staging::{AGAIN_MAX, SPARE_WINDOW, Turn, WINDOW_BYTES};
use crate::table::{Entry, Leaf, PageState, WINDOW_PAGES, leaf_end, place};
use crate::tree::{Eviction, reserve_pages};
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::thread::{futex, sched_yield};
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::{advise, is_mapped, residency};
use spillway_store::{Packer, Scratch};
use std::sync::atomic::Ordering;

/// How often a fault waits for another task's eviction before it exceeds the budget.
const PATIENCE: usize = 10_000;
/// Windows tried in one turn when the kernel refuses all their pages.
const TRIES: usize = 64;
/// Timeout of a window's move, which takes microseconds, ns.
const LOST_NS: u64 = 20_000_000_000;
/// Pause after an eviction that freed nothing, ns.
const STUCK_NS: u64 = 20_000_000;
/// Longest wait of a fault for a full store that is being drained, ns.
const DRAIN_NS: u64 = 50_000_000;
/// Freed values that are removed from the blade at a time.
const TIDY_PAGES: usize = 128;
/// Most pages that a handler moves out while the others sleep.
const BATCH_PAGES: usize = 128;
/// Pages that the evictor packs at a time when nothing is to be evicted.
const PACK_PAGES: usize = 64;

/// The resident pages of a window, one bit a page, and their entries.
struct Victims<'a> {
    address: usize,
    leaf: &'a Leaf,
    first: usize,
    claimed: u64,
}

impl Pager {
    /// Called after a fault was answered: makes a step if one is due.
    pub(crate) fn choose_eviction(&self, now_ns: u64) {
        if self.settings.eviction != Eviction::Auto as u32
            || now_ns < self.scheme.next_step_ns.load(Ordering::Relaxed)
        {
            return;
        }
        let mut choice = self.scheme.choice.lock();
        self.scheme.next_step_ns.store(now_ns + STEP_NS, Ordering::Relaxed);
        let pages = pages_in(&self.task_counters);
        let before = choice.kept();
        let step = choice.step(now_ns, pages, reserve_pages(self.budget_pages()));
        if step == Step::Goes {
            return;
        }
        self.scheme.now.store(choice.scheme() as u32, Ordering::Relaxed);
        if let Step::Found(rates) = step {
            let told = &self.counters().choice;
            told.trials.fetch_add(1, Ordering::Relaxed);
            told.on_demand_rate.store(rates.on_demand, Ordering::Relaxed);
            told.pre_evict_rate.store(rates.pre_evict, Ordering::Relaxed);
            told.scheme.store(choice.kept() as u32 + 1, Ordering::Relaxed);
            if choice.kept() != before {
                told.changes.fetch_add(1, Ordering::Relaxed);
                told.changed_at_ns.store(now_ns, Ordering::Relaxed);
            }
        }
        drop(choice);
        if self.pre_evicts() {
            self.want_eviction();
        }
    }

    /// Evicts on the fault path until the budget is met or no more pages can leave.
    pub(crate) fn make_room(&self, packer: &mut Packer) {
        for _ in 0..PATIENCE {
            let over = self.excess(self.budget_pages()) > 0;
            let may = over && !self.is_stuck() && !self.store.is_draining();
            let slept = if may { self.quiesce.sleep() } else { Slept::No };
            match slept {
                Slept::UntilDone => {}
                Slept::No if may && self.evict_in_fault(packer) => {}
                Slept::No | Slept::TooLong => break,
            }
        }
        if self.store.is_draining() {
            self.wait_for_drain();
        }
    }

    /// If the store is full and the evictor is sending pages to the blade, a fault that needs their
    /// space waits a little, so that a program that fills memory runs at the blade's pace.
    #[cold]
    fn wait_for_drain(&self) {
        let until_ns = crate::link::now_ns() + DRAIN_NS;
        while self.excess(self.budget_pages()) > 0
            && self.store.is_draining()
            && crate::link::now_ns() < until_ns
        {
            self.want_eviction();
            let pause = futex::Timespec { tv_sec: 0, tv_nsec: 100_000 };
            let _ = rustix::thread::nanosleep(&pause);
        }
    }

    /// Whether a recent eviction freed nothing: then faults exceed the budget instead of trying
    /// again each time.
    pub(crate) fn is_stuck(&self) -> bool {
        crate::link::now_ns() < self.evicting.stuck_until_ns.load(Ordering::Relaxed)
    }

    /// No page could leave: pauses evictions for a while.
    pub(crate) fn set_stuck(&self) {
        self.evicting.stuck_until_ns.store(crate::link::now_ns() + STUCK_NS, Ordering::Relaxed);
    }

    /// The evictor's task: keeps pages free ahead of need, and packs stored pages when it has time.
    pub(crate) fn run_evictor(&self) -> ! {
        let starting = self.rest.work(EVICTOR_PLACE);
        let mut scratch = Scratch::new();
        // Pages that could not leave because a fork shares them.
        let mut shared = Vec::with_capacity(WINDOW_PAGES);
        drop(starting);
        let mut may_pack = true;
        loop {
            if self.evicting.wanted.load(Ordering::Acquire) == 0 {
                let pause = if may_pack { 1_000_000 } else { 100_000_000 };
                let pause = futex::Timespec { tv_sec: 0, tv_nsec: pause };
                let _ = futex::wait(&self.evicting.wanted, futex::Flags::PRIVATE, 0, Some(&pause));
            }
            let work = self.rest.work(EVICTOR_PLACE);
            let wanted = self.evicting.wanted.swap(0, Ordering::AcqRel) != 0;
            let limit = if self.pre_evicts() && !self.is_crowded() {
                self.budget_less_reserve(1)
            } else {
                self.budget_pages()
            };
            self.publish_counters();
            let mut moved = false;
            while self.excess(limit) > 0
                && !self.is_stuck()
                && self.evict_window(Memory::Evictor(&mut scratch), Some(&mut shared))
            {
                moved = true;
            }
            let tidied = self.store.blade().map_or(0, |blade| blade.tidy(TIDY_PAGES));
            self.publish();
            may_pack = if wanted || moved || tidied > 0 {
                true
            } else {
                self.store.demote(PACK_PAGES, &mut scratch) > 0
            };
            drop(work);
            Self::break_sharing(&mut shared);
        }
    }

    /// Makes room for a fault. False if no page could leave. While other handlers answer faults, one handler moves
    /// out what all will need next, and each of them writes back a window of it at a time.
    fn evict_in_fault(&self, packer: &mut Packer) -> bool {
        let others = if self.is_in_thread() { 0 } else { self.parking.awake().saturating_sub(1) };
        if others == 0 {
            return self.evict_window(Memory::Fault(packer), None);
        }
        let due = self.staging.turn().oldest(self.pool_pages());
        if let Some(due) = due {
            let progress = self.retire(due, Memory::Fault(packer));
            if !progress {
                self.set_stuck();
            }
            return progress;
        }
        let now_ns = crate::link::now_ns;
        let moved =
            self.quiesce.evict_for_all(others, now_ns, |asleep| self.take_out_batch(asleep));
        moved != Some(0) || self.evict_window(Memory::Fault(packer), None)
    }

    /// Moves windows to the victim pool: enough to justify a sleep of the other handlers, or one. Returns the number
    /// of pages.
    fn take_out_batch(&self, others_sleep: bool) -> usize {
        let most = if others_sleep {
            (self.budget_pages() as usize / 64).clamp(1, BATCH_PAGES)
        } else {
            1
        };
        let mut all = 0;
        while all < most {
            match self.take_out(&mut self.staging.turn(), None) {
                None | Some(0) => break,
                Some(moved) => all += moved,
            }
        }
        all
    }

    /// Evicts one window. False if no page could leave. Adds pages that could not because a fork shares them to
    /// `shared`.
    fn evict_window(&self, memory: Memory<'_>, shared: Option<&mut Vec<usize>>) -> bool {
        let mut turn = self.staging.turn();
        let Some(moved) = self.take_out(&mut turn, shared) else {
            let oldest = turn.oldest(0);
            drop(turn);
            match oldest {
                Some(window) => return self.retire(window, memory),
                None => sched_yield(),
            }
            return true;
        };
        let due = turn.oldest(self.pool_pages());
        drop(turn);
        let kept = due.is_some_and(|due| !self.retire(due, memory));
        let progress = moved > 0 && !kept;
        if !progress {
            self.set_stuck();
        }
        progress
    }

    /// Moves the next window that can leave to the victim pool and returns how many pages did; None when no staging
    /// window is free.
    fn take_out(&self, turn: &mut Turn<'_>, mut shared: Option<&mut Vec<usize>>) -> Option<usize> {
        let window = turn.take_free()?;
        let mut moved = 0;
        for _ in 0..TRIES {
            let Some(victims) = self.next_victims(turn.hand()) else { break };
            let busy;
            (moved, busy) = self.move_out(&victims, window);
            if let Some(shared) = shared.as_deref_mut() {
                note_shared(&victims, busy, shared);
            }
            if moved > 0 {
                break;
            }
        }
        if moved == 0 {
            turn.give_back(window);
        } else {
            turn.pool(window, moved);
        }
        Some(moved)
    }

    /// Claims the next window with resident pages; None after a full cycle of the hand.
    fn next_victims(&self, hand: &mut usize) -> Option<Victims<'_>> {
        let mut wrapped = false;
        let began = *hand;
        loop {
            let region = self.regions.lock().at_or_after(*hand).copied();
            let Some(region) = region.filter(|r| !wrapped || r.start.max(*hand) <= began) else {
                if wrapped {
                    return None;
                }
                wrapped = true;
                *hand = 0;
                continue;
            };
            let from = region.start.max(*hand);
            let Some((at, leaf)) =
                self.table.next_leaf(from, region.end).filter(|_| !region.locked)
            else {
                *hand = region.end;
                continue;
            };
            if leaf.resident.load(Ordering::Relaxed) <= 0 {
                *hand = leaf_end(at);
                continue;
            }
            let end = ((at / WINDOW_BYTES + 1) * WINDOW_BYTES).min(region.end);
            *hand = end;
            if self.holds.overlap(at, end) {
                continue;
            }
            let kept = self
                .regions
                .lock()
                .kept(at, end)
                .fold(0u64, |bits, page| bits | 1 << (place(page) % WINDOW_PAGES));
            let victims = Self::claim(leaf, at, end, kept);
            if victims.claimed != 0 {
                return Some(victims);
            }
        }
    }

    /// Marks the resident pages of a part of a window as leaving, except those in `kept`.
    fn claim(leaf: &Leaf, from: usize, end: usize, kept: u64) -> Victims<'_> {
        let first = place(from) / WINDOW_PAGES * WINDOW_PAGES;
        let address = from / WINDOW_BYTES * WINDOW_BYTES;
        let mut victims = Victims { address, leaf, first, claimed: 0 };
        for page in place(from)..place(from) + (end - from) / PAGE_SIZE {
            let seen = leaf.load(page);
            let stays = seen.has(Entry::INHERITED) || kept & 1 << (page - first) != 0;
            if seen.state() != PageState::Resident || stays {
                continue;
            }
            if seen.has(Entry::REFUSED) {
                let _ = leaf.exchange(page, seen, seen.without(Entry::REFUSED));
            } else if leaf.exchange(page, seen, seen.to(PageState::Leaving)) {
                victims.claimed |= 1 << (page - first);
            }
        }
        victims
    }

    /// Moves claimed pages to a staging window and settles their entries there. Returns how many
    /// moved, and which were refused because they are pinned or shared.
    fn move_out(&self, victims: &Victims<'_>, window: u16) -> (usize, u64) {
        let staging = self.staging.window_address(window);
        let mut left = victims.claimed;
        let mut refused = 0u64;
        let mut busy = 0u64;
        let mut again = 0;
        let mut single = false;
        self.evicting.moving_since_ns.store(crate::link::now_ns(), Ordering::Relaxed);
        while left != 0 {
            let from = left.trailing_zeros() as usize;
            let to = if single { from + 1 } else { from + (left >> from).trailing_ones() as usize };
            let offset = from * PAGE_SIZE;
            let bytes = (to - from) * PAGE_SIZE;
            let source = victims.address + offset;
            let done = self.staging_uffd().move_out(staging + offset, source, bytes);
            let reached = from + done.bytes / PAGE_SIZE;
            left &= !bits(from, reached);
            let Some(errno) = done.stopped else { continue };
            again = if done.bytes > 0 { 0 } else { again + 1 };
            if errno == Errno::AGAIN && again < AGAIN_MAX {
                continue;
            }
            if errno == Errno::INVAL && !single && to - from > 1 {
                // Part of the run may lie in a mapping of another kind.
                single = true;
                continue;
            }
            let bit = 1 << reached;
            left &= !bit;
            if !self.has_left(victims.address + reached * PAGE_SIZE, errno) {
                refused |= bit;
                busy |= if errno == Errno::BUSY { bit } else { 0 };
            }
        }
        self.evicting.moving_since_ns.store(0, Ordering::Relaxed);
        let moved = self.land(victims, window, refused);
        (moved, busy)
    }

    /// Whether the page at which a move stopped is gone from its place: the program dropped it, or it was
    /// moved anyway (see `Uffd::move_out`), because staging was empty.
    fn has_left(&self, address: usize, errno: Errno) -> bool {
        let mut present = [0];
        match errno {
            Errno::EXIST => residency(address, &mut present).is_ok() && present[0] & 1 == 0,
            Errno::NOENT => is_mapped(address, PAGE_SIZE),
            _ => false,
        }
    }

    /// Whether the kernel has worked on one window for so long that it will not return.
    pub(crate) fn is_lost_in_move(&self) -> bool {
        let since = self.evicting.moving_since_ns.load(Ordering::Relaxed);
        since != 0 && crate::link::now_ns().saturating_sub(since) > LOST_NS
    }

    /// Settles the entries of a window after the move: what arrived in staging is pooled, what
    /// was refused is resident, and what is in neither place had been dropped by the program.
    fn land(&self, victims: &Victims<'_>, window: u16, refused: u64) -> usize {
        let mut present = [0u8; WINDOW_PAGES];
        let known = residency(self.staging.window_address(window), &mut present).is_ok();
        if !known {
            self.broken();
        }
        let mut moved = 0;
        let mut left = victims.claimed;
        while left != 0 {
            let page = left.trailing_zeros() as usize;
            left &= left - 1;
            let address = victims.address + page * PAGE_SIZE;
            let at = victims.first + page;
            let slot = usize::from(window) * WINDOW_PAGES + page;
            let seen = victims.leaf.load(at);
            let handle = if seen.has(Entry::CLEAN) { seen.handle() } else { 0 };
            let new = if refused & 1 << page != 0 {
                self.counters().evictions_refused.fetch_add(1, Ordering::Relaxed);
                seen.to(PageState::Resident).with(Entry::REFUSED)
            } else if present[page] & 1 != 0 || self.is_staged(slot) {
                self.staging.write_note(slot, address, handle);
                moved += 1;
                victims.leaf.resident.fetch_sub(1, Ordering::Relaxed);
                Entry::new(PageState::Pooled, slot as u64)
            } else {
                if handle != 0 {
                    self.flush(handle);
                }
                victims.leaf.resident.fetch_sub(1, Ordering::Relaxed);
                self.uncharge(1);
                Entry::NONE
            };
            if victims.leaf.settle(at, new) {
                self.main().wake(address, PAGE_SIZE);
            }
        }
        moved
    }

    /// Whether a page lies in a staging slot, resident there or not: the kernel may have swapped it. Asked by
    /// moving it to the spare slot and back. The caller has the turn.
    pub(crate) fn is_staged(&self, slot: usize) -> bool {
        let slot = self.staging.slot_address(slot);
        let spare = self.staging.window_address(SPARE_WINDOW);
        if !self.move_staged(spare, slot) {
            return false;
        }
        if !self.move_staged(slot, spare) {
            self.broken();
        }
        true
    }

    /// Moves a page between staging slots, to one that is empty. False when there is none.
    fn move_staged(&self, to: usize, from: usize) -> bool {
        loop {
            match self.staging_uffd().move_in(to, from).stopped {
                None | Some(Errno::EXIST) => return true,
                Some(Errno::NOENT) => return false,
                Some(Errno::AGAIN) => sched_yield(),
                Some(_) => self.broken(),
            }
        }
    }

    /// Pages that the kernel would not move because a fork shares them get a copy of their own,
    /// so that they can leave when the hand passes next. Pinned pages stay as they are. Not to be
    /// called while a fork may wait for the caller: a page may have gone, then this is a fault.
    fn break_sharing(shared: &mut Vec<usize>) {
        for address in shared.drain(..) {
            let _ = advise(address, PAGE_SIZE, Advice::LinuxPopulateWrite);
        }
    }
}

/// Records which pages of a window the kernel did not move, unless that needs memory.
fn note_shared(victims: &Victims<'_>, busy: u64, shared: &mut Vec<usize>) {
    for page in (0..WINDOW_PAGES).filter(|page| busy & 1 << page != 0) {
        if shared.len() < shared.capacity() {
            shared.push(victims.address + page * PAGE_SIZE);
        }
    }
}

/// Bits `from..to` of a window.
fn bits(from: usize, to: usize) -> u64 {
    let below = |n: usize| if n >= WINDOW_PAGES { u64::MAX } else { (1 << n) - 1 };
    below(to) & !below(from)
}
