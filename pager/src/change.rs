//! Handles the program's calls that unmap, replace or move managed memory.
//!
//! The kernel may refuse such a call, so the state of the memory is kept until it has answered.
//! During the call the evictor skips the memory, no fork begins, and no other thread's mapping at
//! these addresses becomes managed: until the change has been processed, their state is that of the
//! old memory. Changes are serialized, because one may move memory to where another removed some.

use crate::holds::Hold;
use crate::pager::Pager;
use crate::plan::{NOTHING, Plan, Range};
use crate::registrar_slot::Task;
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use spillway_platform::task::SignalsBlocked;

/// The end of user addresses.
const ADDRESSES_END: usize = 1 << 47;

/// An `mremap` that the program is about to make.
#[derive(Clone, Copy, Debug)]
pub struct Remap {
    /// First byte of the old range.
    pub start: usize,
    /// Bytes of the old range, whole pages.
    pub old_bytes: usize,
    /// Bytes of the new range, whole pages.
    pub new_bytes: usize,
    /// The target address, if the program gives one.
    pub target: Option<usize>,
    /// The old range stays mapped, without its pages (MREMAP_DONTUNMAP).
    pub keeps_source: bool,
}

/// A change in progress, until the kernel has answered. Fields are dropped in order.
#[must_use = "tell how the call ended"]
pub struct Change<'a> {
    pager: &'a Pager,
    gone: [Range; 2],
    /// Memory from this offset of the new range becomes managed too: the part that a remapping
    /// adds.
    added: Range,
    _alone: Hold<'a>,
    _holds: [Option<Hold<'a>>; 2],
    _blocked: SignalsBlocked,
}

/// The part of a range in which memory can be managed.
fn within(start: usize, end: usize) -> Range {
    (start.max(PAGE_SIZE), end.min(ADDRESSES_END))
}

impl Pager {
    /// The program is about to unmap a range, or to map something over it. None if no part of it is
    /// managed.
    pub fn begin_unmap(&self, start: usize, end: usize) -> Option<Change<'_>> {
        let range = within(start, end);
        if !self.is_managed(range.0, range.1) {
            return None;
        }
        let plan = Plan { gone: [range, NOTHING], ..Plan::NONE };
        Some(self.begin(plan, [range, NOTHING], NOTHING))
    }

    /// The program is about to move or resize a range. None if neither it nor its target is managed.
    pub fn begin_remap(&self, remap: Remap) -> Option<Change<'_>> {
        let Remap { start, old_bytes, new_bytes, target, keeps_source } = remap;
        let source = within(start, start.saturating_add(old_bytes));
        let target = target.map_or(NOTHING, |to| within(to, to.saturating_add(new_bytes)));
        let moves = self.is_managed(source.0, source.1);
        if !moves && !self.is_managed(target.0, target.1) {
            return None;
        }
        if !moves {
            let plan = Plan { gone: [target, NOTHING], ..Plan::NONE };
            return Some(self.begin(plan, [source, target], NOTHING));
        }
        let tail = (start.saturating_add(new_bytes).min(source.1), source.1);
        let plan = Plan { gone: [tail, target], target, keeps_source };
        Some(self.begin(plan, [source, target], (old_bytes, new_bytes.max(old_bytes))))
    }

    fn begin(&self, plan: Plan, ranges: [Range; 2], added: Range) -> Change<'_> {
        let blocked = SignalsBlocked::new();
        let [one, other] = ranges;
        let hull = if other == NOTHING { one } else { (one.0.min(other.0), one.1.max(other.1)) };
        let alone = loop {
            let work = self.program_work();
            if let Some(alone) = self.change.ranges.hold_alone(hull.0, hull.1) {
                *self.change.plan.lock() = plan;
                break alone;
            }
            drop(work);
            sched_yield();
        };
        let holds = ranges.map(|(from, to)| (from < to).then(|| self.hold_off(from, to)));
        let gone = plan.gone;
        Change { pager: self, gone, added, _alone: alone, _holds: holds, _blocked: blocked }
    }

    /// A range that the kernel reports as unmapped, and that no thread of the program handles.
    pub(crate) fn unmapped_by_others(&self, start: usize, end: usize) {
        if !self.change.plan.lock().covers(start, end) {
            self.forget_unmapped(start, end);
        }
    }

    /// Forgets the former contents of the target of a move. Returns whether the old place stays
    /// mapped.
    pub(crate) fn clear_target(&self, to: usize, bytes: usize) -> bool {
        let plan = *self.change.plan.lock();
        let (start, end) = plan.target;
        if start <= to && to + bytes <= end {
            self.regions.lock().remove(to, to + bytes);
            self.forget(to, to + bytes);
        }
        plan.keeps_source
    }
}

impl Change<'_> {
    /// Completes the change; a remapping went to `address`. When this returns the pager has processed
    /// it, and memory that was added to a managed range is managed too.
    pub fn made(self, address: usize) {
        let _work = self.pager.program_work();
        let (from, to) = (address + self.added.0, address + self.added.1);
        // The former contents of the target were forgotten before the move.
        let target = self.pager.change.plan.lock().target;
        for gone in self.gone {
            let (start, end) = if gone == target && gone != NOTHING { (from, to) } else { gone };
            if start < end {
                self.pager.regions.lock().remove(start, end);
                self.pager.forget(start, end);
            }
        }
        if from < to {
            self.pager.regions.lock().insert(from, to);
        }
        *self.pager.change.plan.lock() = Plan::NONE;
    }

    /// The kernel refused the change. It may have unmapped a part before, which is forgotten.
    pub fn refused(self) {
        let _work = self.pager.program_work();
        for (start, end) in self.gone.into_iter().filter(|(start, end)| start < end) {
            let _ = self.pager.registrar_slot.ask(Task::Recheck, start, end - start);
        }
        *self.pager.change.plan.lock() = Plan::NONE;
    }
}
