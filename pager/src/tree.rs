//! The page of memory that all processes of one `spillway run` share: its settings and its counters.
//!
//! The supervisor makes it as a sealed-size memfd; each paged process maps it. A process that
//! execs finds it again through the path in [`ENV`] (`/proc/PID/fd/N` of the supervisor).
//! Settings are written once, before the program starts; everything else is an atomic that any
//! process adds to and the supervisor reads.

mod settings;

use crate::record::Records;
pub use settings::{
    ADDRESS_MAX, BladeAddress, BladeSettings, Eviction, Faults, PATH_MAX, Replacement, SECRET_MAX,
    Settings, Text, reserved_bytes,
};
use spillway_tiers::blade::{HOLDERS_MAX, Ledger};
use spillway_types::PROGRAM_PAGES_MIN;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Environment variable that holds the path of the shared page.
pub const ENV: &str = "SPILLWAY_TREE";
/// First eight bytes of a shared page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"spillway");
/// Layout version; supervisor and preload library must agree.
pub const VERSION: u32 = 9;
/// How many processes of a tree have a slot of their own at the same time.
pub const SLOTS: usize = HOLDERS_MAX;
/// A slot that a fork has set aside for its child has this bit and a number of the fork in place of a
/// process.
pub const SET_ASIDE: u32 = 1 << 31;
/// Buckets of the fault-time histogram; see [`bucket_of_ns`].
pub const BUCKETS: usize = 256;
/// Messages that the supervisor has not printed yet.
pub const MESSAGES: usize = 16;

/// Counters of the whole tree. They only grow, except those marked *gauge*.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Faults of any kind that a handler answered.
    pub faults: AtomicU64,
    /// Faults answered with a fresh zero page (first touch).
    pub first_touches: AtomicU64,
    /// Faults answered from the store.
    pub fetches: AtomicU64,
    /// Faults answered from the victim pool, without a transfer.
    pub rescues: AtomicU64,
    /// First writes to a page that was clean.
    pub write_faults: AtomicU64,
    /// Pages brought in ahead of a fault.
    pub prefetches: AtomicU64,
    /// Pages evicted.
    pub evictions: AtomicU64,
    /// Of these, clean ones, dropped without a transfer.
    pub evictions_clean: AtomicU64,
    /// Evictions that the kernel refused: pinned, locked or shared pages.
    pub evictions_refused: AtomicU64,
    /// Pages that no tier accepted; the program keeps them above its budget.
    pub store_refusals: AtomicU64,
    /// Reads whose bytes failed their checksum; each became a SIGBUS.
    pub corrupt_reads: AtomicU64,
    /// Pages lost by both blade and mirror; each became a SIGBUS.
    pub lost_pages: AtomicU64,
    /// Pages read from the disk tier.
    pub disk_reads: AtomicU64,
    /// Pages read from the blade or its mirror.
    pub blade_reads: AtomicU64,
    /// Of these, from the mirror.
    pub mirror_reads: AtomicU64,
    /// Bytes of these as they travelled.
    pub blade_read_bytes: AtomicU64,
    /// Pages sent to the blade, and those sent to the mirror.
    pub blade_writes: AtomicU64,
    /// Bytes of these as they travelled.
    pub blade_written_bytes: AtomicU64,
    /// Pages that the blade or the mirror refused.
    pub blade_refusals: AtomicU64,
    /// Calls to the blade or the mirror that took longer than 100 ms, or in which it went down.
    pub blade_stalls: AtomicU64,
    /// The longest of them, ns.
    pub blade_stall_max_ns: AtomicU64,
    /// Bytes on the blade (gauge).
    pub blade_bytes: AtomicI64,
    /// Which of blade (1) and mirror (2) is known not to answer.
    pub blade_down: AtomicU32,
    /// Set once it was reported that threads answer a program's faults.
    pub told_by_threads: AtomicU32,
    /// Kinds of programs that can't be paged and were reported, a bit for each `value` of [`Notice::Unpaged`].
    pub told_unpaged: AtomicU32,
    /// Pages in the store, far from the program (gauge).
    pub far_pages: AtomicI64,
    /// Managed pages that are resident (gauge).
    pub resident_pages: AtomicI64,
    /// Most managed pages that were ever resident together.
    pub resident_peak_pages: AtomicI64,
    /// Bytes of memory that the stores take, index and frames (gauge).
    pub store_bytes: AtomicI64,
    /// The most that `store_bytes` ever was.
    pub store_peak_bytes: AtomicI64,
    /// Bytes in the disk tier (gauge).
    pub disk_bytes: AtomicI64,
    /// Stored pages that needed no frame, all bytes being the same (gauge).
    pub same_filled_pages: AtomicI64,
    /// Stored pages that are compressed (gauge).
    pub compressed_pages: AtomicI64,
    /// Paged processes that started.
    pub processes: AtomicU64,
    /// Time spent answering faults, ns.
    pub fault_ns: AtomicU64,
    /// The longest of them, ns.
    pub fault_max_ns: AtomicU64,
    /// When pages leave, where that is chosen by itself.
    pub choice: ChoiceCounters,
}

/// What came of choosing when pages leave ([`Eviction::Auto`]). Each process chooses for itself; what is not a sum is the
/// latest one's.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ChoiceCounters {
    /// The scheme that is kept (gauge), 1 + [`Eviction`] as a number; 0 before the first pager is there.
    pub scheme: AtomicU32,
    /// Trials that came to their end.
    pub trials: AtomicU64,
    /// Changes of scheme.
    pub changes: AtomicU64,
    /// When the latest change was, ns as [`crate::link::now_ns`] has it.
    pub changed_at_ns: AtomicU64,
    /// What the latest trial found for on-demand, pages that came in a second.
    pub on_demand_rate: AtomicU64,
    /// The same for pre-evict.
    pub pre_evict_rate: AtomicU64,
}

/// One paged process. Free when `pid` is 0.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// The process.
    pub pid: AtomicU32,
    /// The task that pages it: a process, or a thread of this one.
    pub pager_pid: AtomicU32,
    /// 1 when the pager is part of the process: it ends with it and with exec, and never alone.
    pub in_program: AtomicU32,
    /// Once there is no supervisor: the process that watches the pager, if that may end alone.
    pub watcher_pid: AtomicU32,
    /// Its part of [`Counters::resident_pages`].
    pub resident_pages: AtomicI64,
    /// Its part of [`Counters::far_pages`].
    pub far_pages: AtomicI64,
    /// Its part of [`Counters::store_bytes`].
    pub store_bytes: AtomicI64,
    /// Its part of [`Counters::blade_bytes`].
    pub blade_bytes: AtomicI64,
}

impl Slot {
    /// Makes room for the next process.
    pub fn free(&self) {
        for number in [&self.watcher_pid, &self.in_program, &self.pager_pid] {
            number.store(0, Ordering::Release);
        }
        self.pid.store(0, Ordering::Release);
    }
}

/// A line for the user. The supervisor prints it and sets `kind` back to 0.
#[derive(Debug)]
#[repr(C)]
pub struct Message {
    /// 0: free, 1: being written, else a [`Notice`] + 1.
    pub kind: AtomicU32,
    /// The process it is about.
    pub pid: AtomicU32,
    /// A number that belongs to the line, such as an address or an errno.
    pub value: AtomicU64,
}

/// Lines that a pager asks the supervisor to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Notice {
    /// No tier takes more pages: the program keeps `value` pages above its budget.
    StoreFull = 1,
    /// The file tier is full or failed; `value` is the errno.
    DiskFailed = 2,
    /// The page at address `value` failed its checksum; the program gets SIGBUS there.
    Corrupt = 3,
    /// userfaultfd was refused with errno `value`; the process runs unpaged.
    NoUserfaultfd = 4,
    /// The process called mlockall: managed memory stays pageable.
    MlockAll = 5,
    /// A forked child could not be paged and was stopped before it read wrong bytes; errno `value`.
    ForkRefused = 6,
    /// The pager is in an inconsistent state; the process was killed. `value` is the place, for [`crate::place_of`].
    Broken = 7,
    /// The program tried to share guest memory that is paged with another process; it got EPERM.
    GuestRamShared = 8,
    /// The blade does not answer any more.
    BladeDown = 9,
    /// The mirror does not answer any more.
    MirrorDown = 10,
    /// The blade answers again.
    BladeBack = 11,
    /// The mirror answers again.
    MirrorBack = 12,
    /// A call to the blade or its mirror took `value` ms.
    Stall = 13,
    /// The page at address `value` is gone with the blade; the program gets SIGBUS there.
    Gone = 14,
    /// The pager could not start, with errno `value`; the process runs unpaged.
    NoPager = 15,
    /// The program uses function `value` of [`crate::unserved::FUNCTIONS`], so threads answer its faults.
    ByThreads = 16,
    /// A fork failed with errno `value`: there was no room for the child's pager.
    NoRoomForChild = 17,
    /// A program that can't be paged was started again without the library: `value` is a place in
    /// [`crate::unpaged::SANITIZERS`], or its length for valgrind.
    Unpaged = 18,
}

/// The shared page.
#[derive(Debug)]
#[repr(C)]
pub struct Tree {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Next message to be written.
    pub message_next: AtomicU32,
    /// Forks that set a slot aside.
    pub forks: AtomicU32,
    /// 1 once the supervisor has ended normally. Remaining programs continue without it.
    pub unsupervised: AtomicU32,
    /// 1 once the supervisor could not hold the userfaultfds of a pager: then each pager has a watcher that
    /// holds them.
    pub needs_watchers: AtomicU32,
    /// 1 once a process of the run adopts orphans: process 1 of a namespace, or a subreaper. A pager that
    /// is a process would be one of them, so those that start from now on are threads.
    pub adopts_orphans: AtomicU32,
    /// Most managed pages that may be resident in the whole tree. The supervisor moves it while the program runs, by
    /// [`next_budget_pages`]; never below [`PROGRAM_PAGES_MIN`].
    pub budget_pages: AtomicU64,
    /// Settings; constant while the program runs.
    pub settings: Settings,
    /// Sums over all processes.
    pub counters: Counters,
    /// Histogram of the time from reading a fault to having answered it; see [`bucket_of_ns`].
    pub fault_histogram: [AtomicU64; BUCKETS],
    /// Lines for the user.
    pub messages: [Message; MESSAGES],
    /// The processes.
    pub slots: [Slot; SLOTS],
    /// Who holds what on the blade; holders are numbered as `slots` are.
    pub ledger: Ledger,
    /// What is asked of the stores, when that is recorded. Last, for its memory is not touched otherwise.
    pub records: Records,
}

/// Size of the memfd, bytes: a whole number of pages.
pub const TREE_BYTES: usize = size_of::<Tree>().next_multiple_of(4096);

/// Pages that the evictor keeps free ahead of need within a budget.
#[must_use]
pub fn reserve_pages(budget_pages: u64) -> u64 {
    (budget_pages / 32).clamp(16, 2048)
}

/// The next step of a budget on its way to `target_pages`, while `resident_pages` are resident. It grows at once. It
/// shrinks by a reserve at a time, and not while more is resident than it allows: so it is the evictor that takes the
/// pages out, from the reserve that it has freed already, and no fault finds more than a reserve above the budget.
#[must_use]
pub fn next_budget_pages(budget_pages: u64, target_pages: u64, resident_pages: u64) -> u64 {
    let target_pages = target_pages.max(PROGRAM_PAGES_MIN);
    if target_pages >= budget_pages {
        return target_pages;
    }
    if resident_pages > budget_pages {
        return budget_pages;
    }
    let step_pages = budget_pages.saturating_sub(reserve_pages(budget_pages));
    // What nobody uses goes at once.
    step_pages.min(resident_pages).max(target_pages)
}

/// Histogram bucket of a duration: eight linear steps in each power of two, so within 12.5 %.
#[must_use]
pub fn bucket_of_ns(ns: u64) -> usize {
    if ns < 8 {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros() as usize;
    let step = (ns >> (exponent - 3)) as usize & 7;
    ((exponent - 2) * 8 + step).min(BUCKETS - 1)
}

/// Least duration that falls into a bucket, ns.
#[must_use]
pub fn bucket_floor_ns(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let exponent = bucket / 8 + 2;
    (8 + (bucket as u64 & 7)) << (exponent - 3)
}

impl Tree {
    /// Takes what a slot held off the sums, lets go of what it held on the blade, and frees it. Tells the
    /// objects on the blade that nobody holds any more.
    pub fn release(&self, slot: &Slot, unheld: impl FnMut(u64)) {
        let number = self.slots.iter().position(|other| std::ptr::eq(other, slot));
        self.ledger.release(number.unwrap_or(SLOTS - 1), unheld);
        let counters = &self.counters;
        for (sum, part) in [
            (&counters.resident_pages, &slot.resident_pages),
            (&counters.far_pages, &slot.far_pages),
            (&counters.store_bytes, &slot.store_bytes),
            (&counters.blade_bytes, &slot.blade_bytes),
        ] {
            sum.fetch_sub(part.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        slot.free();
    }

    /// As [`Tree::release`], of a slot that still is `pid`'s. One that comes for it now finds it gone.
    pub fn take_back(&self, slot: &Slot, pid: u32, unheld: impl FnMut(u64)) {
        const NOBODY: u32 = u32::MAX;
        if slot.pid.compare_exchange(pid, NOBODY, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.release(slot, unheld);
        }
    }

    /// Leaves a line for the supervisor; dropped when sixteen are waiting already.
    pub fn notify(&self, notice: Notice, pid: u32, value: u64) {
        for _ in 0..MESSAGES {
            let at = self.message_next.fetch_add(1, Ordering::Relaxed) as usize % MESSAGES;
            let message = &self.messages[at];
            if message.kind.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                message.pid.store(pid, Ordering::Relaxed);
                message.value.store(value, Ordering::Relaxed);
                message.kind.store(notice as u32 + 1, Ordering::Release);
                return;
            }
        }
    }
}

/// A free slot of the shared page; the last one, shared, when all are taken.
pub(crate) fn take_slot(tree: &'static Tree, pid: u32) -> &'static Slot {
    let free = |slot: &&Slot| {
        slot.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    tree.slots.iter().find(free).unwrap_or(&tree.slots[SLOTS - 1])
}

#[cfg(test)]
mod tests;
