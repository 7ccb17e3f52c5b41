//! A loan that this host asks for, holds or has given back.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{DeviceId, Epoch, HostId, PoolIdentity};

/// A loan that this host has requested or holds.
#[derive(Clone, Debug)]
pub(crate) struct Loan {
    pub lender: HostId,
    pub device: DeviceId,
    /// Whether each of its slabs was used. A place is used only once, so that a late write never reaches
    /// another slab.
    pub used: Vec<bool>,
    pub slab_bytes: u64,
    /// The last request's sequence number, and the times of the last few.
    pub sequence: u32,
    pub sent: VecDeque<(u32, Duration)>,
    pub state: LoanState,
}

#[derive(Clone, Debug)]
pub(crate) enum LoanState {
    Asked { again_at: Duration, until: Duration },
    Held(GrantedLoan),
}

#[derive(Clone, Debug)]
pub(crate) struct GrantedLoan {
    pub pool: PoolIdentity,
    /// The lender's last known epoch.
    pub epoch: Epoch,
    pub lease_until: Duration,
    pub renew_at: Duration,
    /// Its lender wants it back.
    pub is_recalled: bool,
    /// A part of it failed: no new copies are placed there.
    pub is_suspect: bool,
}

/// A returned loan whose lender may not know yet.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub lender: HostId,
    pub again_at: Duration,
    /// When its lease has also run out on the lender's side, whatever arrived there.
    pub until: Duration,
}

impl Loan {
    pub const fn is_held(&self) -> bool {
        matches!(self.state, LoanState::Held(_))
    }

    pub const fn is_recalled(&self) -> bool {
        matches!(self.state, LoanState::Held(GrantedLoan { is_recalled: true, .. }))
    }

    /// Whether slabs may be placed in it.
    pub const fn is_sound(&self) -> bool {
        matches!(
            self.state,
            LoanState::Held(GrantedLoan { is_recalled: false, is_suspect: false, .. })
        )
    }

    pub fn suspect(&mut self, now: Duration) {
        if let LoanState::Held(held) = &mut self.state {
            held.is_suspect = true;
            held.renew_at = held.renew_at.min(now);
        }
    }

    pub const fn wake_at(&self) -> Duration {
        let (one, other) = match &self.state {
            LoanState::Asked { again_at, until } => (again_at, until),
            LoanState::Held(held) => (&held.renew_at, &held.lease_until),
        };
        if one.as_nanos() < other.as_nanos() { *one } else { *other }
    }

    /// When the sending of this number was sent, if it was one of the last few.
    pub fn sent_at(&self, sequence: u32) -> Option<Duration> {
        self.sent.iter().find(|(its, _)| *its == sequence).map(|(_, at)| *at)
    }

    /// The loan's next unused slab.
    pub fn take_slot(&mut self) -> Option<u32> {
        let index = self.used.iter().position(|used| !used)?;
        self.used[index] = true;
        Some(index as u32)
    }

    /// Makes a taken slab unused again. To be called only if nothing was sent to it.
    pub fn give_slot_back(&mut self, index: u32) {
        if let Some(used) = self.used.get_mut(index as usize) {
            *used = false;
        }
    }
}
