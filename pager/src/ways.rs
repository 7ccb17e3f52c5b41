//! The ways of a process to the blade of its run, and what its pager notes of that.

use std::time::Duration;

use crate::tree::{SLOTS, Slot, Tree};
use spillway_tiers::blade::{Blade, BladeCounts, Carrier, Seal};

/// A process's transports to other hosts.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// To the blade.
    pub blade: &'static dyn Carrier,
    /// To its mirror.
    pub mirror: Option<&'static dyn Carrier>,
}

impl Ways {
    /// The tier of the process in `slot`.
    pub(crate) fn into_tier(self, tree: &'static Tree, slot: &Slot) -> Blade {
        let settings = &tree.settings.blade;
        let seal = Seal::of(settings.encrypt != 0, settings.share != 0, &settings.key);
        let loss_timeout = Duration::from_nanos(settings.loss_timeout_ns);
        Blade::new(seal, self.blade, self.mirror, &tree.ledger, number_of(tree, slot))
            .with_loss_timeout(loss_timeout)
    }
}

/// The number of a slot.
pub(crate) fn number_of(tree: &Tree, slot: &Slot) -> usize {
    let same = |other: &Slot| std::ptr::eq(other, slot);
    tree.slots.iter().position(same).unwrap_or(SLOTS - 1)
}

/// Resources reserved for the child of a fork.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildSlot {
    pub(crate) slot: &'static Slot,
    /// What the slot has in place of a process; 0 for the slot that all share.
    pub(crate) mark: u32,
}

/// What was reported about the tiers so far.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) counts: BladeCounts,
    pub(crate) disk_reads: u64,
    pub(crate) down: u32,
    /// Blade or mirror fell, and the call that found it out has not said yet how long it took.
    pub(crate) awaits_stall: bool,
    pub(crate) bytes: i64,
    pub(crate) inherited_bytes: i64,
}
