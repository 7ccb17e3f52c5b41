//! The statistics of a guest: a line, and JSON.

use std::time::Duration;

use serde::Serialize;
use spillway_guest_memory::{Counter, Map, Mark};

use super::plan::Plan;
use crate::units::show_size;

/// The statistics of a guest. docs/guest-memory.md describes each field.
#[derive(Debug, Serialize)]
pub struct Report {
    version: u32,
    monitor: &'static str,
    seconds: f64,
    guest_bytes: u64,
    local_bytes: Option<u64>,
    resident_max_bytes: Option<u64>,
    far_bytes: u64,
    managers: u64,
    take_over_max_ms: f64,
    counters: Counters,
}

#[derive(Debug, Serialize)]
struct Counters {
    evictions: u64,
    fetches: u64,
    first_touches: u64,
    write_faults: u64,
    removed: u64,
    refusals: u64,
    lost: u64,
}

impl Report {
    pub fn new(plan: &Plan, map: &Map, took: Duration) -> Self {
        let pages_out = !plan.firecracker;
        let counters = Counters {
            evictions: map.counted(Counter::Evictions),
            fetches: map.counted(Counter::Fetches),
            first_touches: map.counted(Counter::FirstTouches),
            write_faults: map.counted(Counter::WriteFaults),
            removed: map.counted(Counter::Removed),
            refusals: map.counted(Counter::Refusals),
            lost: map.counted(Counter::Lost),
        };
        Self {
            version: 1,
            monitor: plan.handshake().monitor(),
            seconds: took.as_secs_f64(),
            guest_bytes: plan.layout.bytes(),
            local_bytes: pages_out.then_some(plan.local_bytes),
            resident_max_bytes: pages_out.then(|| map.counted(Counter::ResidentMax)),
            far_bytes: map.far() * plan.layout.unit_bytes(),
            managers: map.mark(Mark::Ready),
            take_over_max_ms: map.counted(Counter::TakeOverMax) as f64 / 1e6,
            counters,
        }
    }

    /// The line at the end.
    pub fn line(&self) -> String {
        let Counters { evictions, fetches, first_touches, removed, lost, .. } = &self.counters;
        let mut line = format!(
            "the guest had {}: {first_touches} pages first touched, {removed} removed",
            show_size(self.guest_bytes)
        );
        if let Some(most) = self.resident_max_bytes {
            line += &format!(
                ", {evictions} evicted, {fetches} fetched; at most {} resident",
                show_size(most)
            );
        }
        if self.managers > 1 {
            line += &format!(
                "; {} managers, the slowest took over in {:.1} ms",
                self.managers, self.take_over_max_ms
            );
        }
        if *lost > 0 {
            line += &format!("; {lost} pages LOST");
        }
        line
    }
}
