//! Figures for the operator: `SPILL.STATS` and INFO.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::server::InfoSection;
use crate::spill::{Spill, spill};

type Figure = (&'static CStr, fn(&Spill) -> u64);

/// Each figure's name and source.
const FIGURES: [Figure; 12] = [
    (c"store_connected", |spill| spill.is_connected().into()),
    (c"store_lost_connections", |spill| read(&spill.counters.away)),
    (c"spilled_values", |spill| read(&spill.counters.spilled_values)),
    (c"spilled_bytes", |spill| read(&spill.counters.spilled_bytes)),
    (c"inline_values", |spill| read(&spill.counters.inline_values)),
    (c"inline_bytes", |spill| read(&spill.counters.inline_bytes)),
    (c"puts", |spill| read(&spill.counters.puts)),
    (c"puts_refused", |spill| read(&spill.counters.refused)),
    (c"fetches", |spill| read(&spill.counters.fetches)),
    (c"fetches_failed", |spill| read(&spill.counters.failed)),
    (c"child_kept_bytes", Spill::kept_bytes),
    (c"unflushed_values", Spill::unflushed),
];

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Every figure with its name.
pub fn figures() -> impl ExactSizeIterator<Item = (&'static CStr, u64)> {
    FIGURES.iter().map(|&(name, figure)| (name, figure(spill())))
}

/// Writes the figures into INFO.
pub fn inform(section: &InfoSection) {
    figures().for_each(|(name, figure)| section.number(name, figure));
}
