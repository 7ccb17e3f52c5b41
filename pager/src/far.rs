//! A pager's use of the run's blade: joining and leaving, forks, and notices.

use crate::error::Error;
use crate::pager::Pager;
use crate::tree::{Counters, Notice, SET_ASIDE, Settings, Slot, take_slot};
use crate::ways::{ChildSlot, number_of};
use rustix::io::Errno;
use spillway_platform::process::ProcFolder;
use spillway_tiers::blade::BladeCounts;
use std::sync::atomic::{AtomicU64, Ordering};

const BLADE: u32 = 1;
const MIRROR: u32 = 2;
/// Stalls of this length are reported even if blade and mirror stay up, ms.
const TOLD_STALL_MS: u64 = 1000;

impl Pager {
    /// Before a fork, with everything at rest: reserves a slot for the child and makes it a holder
    /// of all pages on the blade, so that none is removed before the child exists.
    pub(crate) fn prepare_child_slot(&self) {
        let Some(blade) = self.store.blade() else { return };
        let number = self.tree.forks.fetch_add(1, Ordering::Relaxed);
        let mark = SET_ASIDE | number;
        let slot = take_slot(self.tree, mark);
        let shared = slot.pid.load(Ordering::Acquire) != mark;
        *self.child_slot.lock() = Some(ChildSlot { slot, mark: if shared { 0 } else { mark } });
        blade.share(number_of(self.tree, slot));
    }

    /// In a forked child: takes the reserved slot.
    pub(crate) fn inherit_slot(&self, pid: u32) -> Result<&'static Slot, Error> {
        let Some(blade) = self.store.blade() else { return Ok(take_slot(self.tree, pid)) };
        let child = self.child_slot.lock().take().ok_or(Error::Store(Errno::TIMEDOUT))?;
        if child.mark != 0 {
            // The supervisor frees a slot whose child does not appear.
            let taken = child.slot.pid.compare_exchange(
                child.mark,
                pid,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            taken.map_err(|_| Error::Resources(Errno::TIMEDOUT))?;
        }
        blade.become_child(number_of(self.tree, child.slot));
        let mut published = self.published.lock();
        published.inherited_bytes = blade.bytes() as i64;
        published.bytes = 0;
        Ok(child.slot)
    }

    /// When the program has ended: releases its pages on the blade. The last process of a run whose
    /// supervisor is gone removes everything.
    pub(crate) fn leave_blade(&self) {
        let Some(blade) = self.store.blade() else { return };
        blade.leave();
        self.publish_tiers();
        let mut published = self.published.lock();
        let bytes = std::mem::take(&mut published.bytes);
        self.count_blade_bytes(-bytes);
        let others =
            self.tree.slots.iter().any(|slot| {
                !std::ptr::eq(slot, self.slot) && slot.pid.load(Ordering::Acquire) != 0
            });
        if !others && (self.is_unsupervised() || self.supervisor_was_killed()) {
            blade.end_run();
        }
    }

    /// Whether the supervisor has ended abnormally.
    fn supervisor_was_killed(&self) -> bool {
        let Settings { supervisor_pid, supervisor_start_ticks, .. } = self.settings;
        ProcFolder::open(supervisor_pid, supervisor_start_ticks)
            .map_or(true, |folder| folder.has_ended())
    }

    /// Adds to the shared counters what the tiers have counted since the last time, and leaves a line
    /// when blade or mirror stopped or began to answer.
    pub(crate) fn publish_tiers(&self) {
        let mut published = self.published.lock();
        let disk_reads = self.store.disk_reads();
        let more = disk_reads - std::mem::replace(&mut published.disk_reads, disk_reads);
        self.counters().disk_reads.fetch_add(more, Ordering::Relaxed);
        let Some(blade) = self.store.blade() else { return };
        let counts = blade.counts();
        let before = std::mem::replace(&mut published.counts, counts);
        add_counts(self.counters(), &counts, &before);
        let own = (blade.bytes() as i64 - published.inherited_bytes).max(0);
        let more = own - std::mem::replace(&mut published.bytes, own);
        self.count_blade_bytes(more);
        let stall_ms = blade.take_stall_ns().div_ceil(1_000_000);
        let (blade_down, mirror_down) = blade.down();
        let down = if blade_down { BLADE } else { 0 } | if mirror_down { MIRROR } else { 0 };
        let before = std::mem::replace(&mut published.down, down);
        published.awaits_stall |= down & !before != 0;
        if stall_ms >= TOLD_STALL_MS || stall_ms > 0 && published.awaits_stall {
            published.awaits_stall = false;
            self.tell(Notice::Stall, stall_ms);
        }
        for (bit, fell, rose) in [
            (BLADE, Notice::BladeDown, Notice::BladeBack),
            (MIRROR, Notice::MirrorDown, Notice::MirrorBack),
        ] {
            // One line for all processes of the run.
            let known = &self.counters().blade_down;
            if down & !before & bit != 0 && known.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                self.tell(fell, 0);
            }
            if before & !down & bit != 0 && known.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                self.tell(rose, 0);
            }
        }
    }

    fn tell(&self, notice: Notice, value: u64) {
        self.tree.notify(notice, self.slot.pid.load(Ordering::Relaxed), value);
    }

    fn count_blade_bytes(&self, bytes: i64) {
        self.slot.blade_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters().blade_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn add_counts(counters: &Counters, now: &BladeCounts, before: &BladeCounts) {
    let add = |counter: &AtomicU64, now: u64, before: u64| {
        if now != before {
            counter.fetch_add(now - before, Ordering::Relaxed);
        }
    };
    add(&counters.blade_reads, now.reads, before.reads);
    add(&counters.mirror_reads, now.mirror_reads, before.mirror_reads);
    add(&counters.blade_read_bytes, now.read_bytes, before.read_bytes);
    add(&counters.blade_writes, now.writes, before.writes);
    add(&counters.blade_written_bytes, now.written_bytes, before.written_bytes);
    add(&counters.blade_refusals, now.refusals, before.refusals);
    add(&counters.blade_stalls, now.stalls, before.stalls);
    counters.blade_stall_max_ns.fetch_max(now.stall_max_ns, Ordering::Relaxed);
}
