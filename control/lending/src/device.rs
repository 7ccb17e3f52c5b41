//! A swap device of this host: its slabs, and where their copies lie.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::{CopyLocation, DeviceState, HostId, LoanId};

/// A swap device of this host.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub state: DeviceState,
    /// The operator borrowed it; only an order returns it.
    pub is_kept: bool,
    /// Detach it as soon as possible.
    pub is_leaving: bool,
    /// When to retry that.
    pub detach_at: Duration,
    pub slab_bytes: u64,
    pub slabs: Vec<Slab>,
    /// Lenders are being asked.
    pub seek: Option<Seek>,
    /// When to ask them again, once all have refused.
    pub seek_at: Duration,
    /// The local file failed: it accepts no more pages of this device.
    pub has_lost_file: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Slab {
    pub copies: [Option<CopyLocation>; 2],
    pub moving: Option<Move>,
    /// When to retry placing a copy after a failure.
    pub move_at: Duration,
}

/// A copy of a slab that is being placed.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub copy: u8,
    pub place: CopyLocation,
    pub since: Duration,
    /// Whether a note was made that it takes long.
    pub is_noted: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Seek {
    pub round: u32,
    /// Hosts that are not asked again in this search.
    pub refused: BTreeSet<HostId>,
}

impl Device {
    pub fn is_gathering(&self) -> bool {
        self.state == DeviceState::Gathering
    }

    pub fn is_attached(&self) -> bool {
        self.state == DeviceState::Attached
    }

    pub fn bytes(&self) -> u64 {
        if self.is_gathering() { 0 } else { self.slabs.len() as u64 * self.slab_bytes }
    }

    pub fn wake_at(&self, now: Duration, slow_move: Duration) -> Option<Duration> {
        if !matches!(self.state, DeviceState::Attached | DeviceState::Detaching) {
            return None;
        }
        let moves = self.slabs.iter().map(|slab| slab.move_at);
        let slow = self.moves().map(|its| its.since + slow_move);
        let times = [self.detach_at, self.seek_at].into_iter().chain(moves).chain(slow);
        times.filter(|at| *at > now).min()
    }

    /// Copies that are being placed.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.slabs.iter().filter_map(|slab| slab.moving.as_ref())
    }

    pub fn uses(&self, loan: &LoanId) -> bool {
        self.slabs.iter().any(|slab| slab.places().any(|place| place.is_in(loan)))
    }
}

impl Slab {
    pub fn is_lost(&self) -> bool {
        self.copies == [None, None] && self.moving.is_none()
    }

    pub fn needs_file(&self) -> bool {
        self.places().any(|place| *place == CopyLocation::File)
    }

    /// The places of its copies, and the target of a move.
    fn places(&self) -> impl Iterator<Item = &CopyLocation> {
        let moving = self.moving.as_ref().map(|its| &its.place);
        self.copies.iter().flatten().chain(moving)
    }
}
