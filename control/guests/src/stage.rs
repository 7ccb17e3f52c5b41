//! The stages of a change of size.

use crate::need::Need;
use crate::settings::{NEED_RETRY_US, POLL_US};
use crate::{Cause, End, Order, Times, Who};

/// A change of size in progress.
#[derive(Clone, Debug)]
pub(crate) struct Resize {
    pub(crate) order: Order,
    pub(crate) aim_bytes: u64,
    pub(crate) from_bytes: u64,
    /// The former size and the aim of each device.
    pub(crate) from: Vec<u64>,
    pub(crate) to: Vec<u64>,
    /// The size up to which this order reserved memory for each device: it lies where the guest plugs next.
    pub(crate) reserved: Vec<u64>,
    pub(crate) stage: Stage,
    /// Whether the devices were read since the last request: before that, their sizes may be outdated.
    pub(crate) is_read: bool,
    pub(crate) began_us: u64,
    pub(crate) stage_began_us: u64,
    pub(crate) times: Times,
    /// The result, once the remaining memory is released.
    pub(crate) end: End,
    /// Whether the agent set blocks offline that the device may not take in the end.
    pub(crate) has_offlined: bool,
    /// Whether the requesting program waits again, without an answer yet.
    pub(crate) is_put_back: bool,
    /// The pool's error for the full amount.
    pub(crate) dry: Option<String>,
}

/// What a change of size waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A stopped change comes to rest: while the guest plugs, nothing can be reserved for it.
    Rest { until_us: u64 },
    /// The pool reserves memory for this device.
    Reserve { device: usize },
    /// The pool is exhausted, but other guests were asked for memory: try again at this time.
    Wait { until_us: u64 },
    /// The agent sets blocks offline, until this time.
    Offline { id: u64, until_us: u64 },
    /// The guest plugs or unplugs.
    Plug { until_us: u64, nudge_at_us: u64 },
    /// The agent reports when the plugged memory is online, until this time.
    Online { id: u64, until_us: u64 },
    /// The guest comes to rest at its present or former size.
    Freeze { until_us: u64, nudge_at_us: u64 },
    /// The pool frees memory; this many answers are missing.
    Release { waits: usize },
}

impl Resize {
    /// How often the devices are to be read, microseconds.
    pub(crate) fn poll_us(&self) -> u64 {
        match self.stage {
            Stage::Wait { .. } => NEED_RETRY_US,
            _ => POLL_US,
        }
    }

    /// Memory that the guest waits for while the pool is exhausted, bytes.
    pub(crate) fn wanted_bytes(&self) -> u64 {
        match self.stage {
            Stage::Wait { .. } => self.aim_bytes - self.from_bytes,
            _ => 0,
        }
    }

    /// The request of a program that waits for memory of others; nothing has changed yet.
    pub(crate) fn program(&self) -> Option<Need> {
        let Who::Guest { need, cause: cause @ Cause::Program, until_us } = self.order.who else {
            return None;
        };
        let bytes = self.wanted_bytes();
        (bytes > 0).then_some(Need { id: need, bytes, cause, until_us })
    }

    /// Whether the guest waits for memory of others, and could wait longer.
    pub(crate) fn waits_with_time(&self) -> bool {
        matches!(self.order.who, Who::Guest { cause: Cause::Foreseen | Cause::Program, .. })
            && self.wanted_bytes() > 0
    }

    /// Whether the guest has reached the aim, but may not have it online yet.
    pub(crate) fn is_plugged(&self) -> bool {
        matches!(self.stage, Stage::Online { .. })
    }

    /// Records that the devices were read.
    pub(crate) fn note_reading(&mut self) {
        self.is_read = true;
    }

    /// Begins a stage, and records how long the previous one took.
    pub(crate) fn enter(&mut self, now_us: u64, stage: Stage) {
        let took_us = now_us - self.stage_began_us;
        match self.stage {
            Stage::Rest { .. } | Stage::Reserve { .. } | Stage::Wait { .. } => {
                self.times.reserve_us += took_us
            }
            Stage::Offline { .. } => self.times.offline_us += took_us,
            Stage::Plug { .. } | Stage::Online { .. } | Stage::Freeze { .. } => {
                self.times.guest_us += took_us
            }
            Stage::Release { .. } => self.times.release_us += took_us,
        }
        self.stage_began_us = now_us;
        self.stage = stage;
    }
}
