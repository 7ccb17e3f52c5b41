//! A loan that this host gives.

use core::time::Duration;

use crate::{Access, Body, Epoch, Kept, LoanId, MemBorAck, Settings};

/// A loan that this host has given.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    pub slabs: u32,
    pub slab_bytes: u64,
    /// The epoch of the requesting borrower; none for a loan kept across a restart of this host.
    pub epoch: Option<Epoch>,
    /// The borrower's epoch that was asked whether it knows the loan.
    pub probed: Option<Epoch>,
    pub state: GrantState,
    /// The newest request, the lease that answered it, and when all leases have run out here.
    pub sequence: u32,
    pub lease: Duration,
    pub lease_until: Duration,
    pub recall: Option<Recall>,
    pub since: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum GrantState {
    /// Memory is being reserved; `is_over` if the loan is no longer wanted.
    Reserving {
        is_over: bool,
    },
    Granted(Access),
    Releasing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Recall {
    pub deadline: Duration,
    pub again_at: Duration,
}

impl Lent {
    /// A loan from before a restart. Any lease given before ends within a lease and its margin from now.
    pub fn kept(kept: Kept, settings: &Settings, now: Duration) -> Self {
        Self {
            slabs: kept.slabs,
            slab_bytes: kept.slab_bytes,
            epoch: None,
            probed: None,
            state: GrantState::Granted(kept.access),
            sequence: 0,
            lease: Duration::ZERO,
            lease_until: now + settings.lease + settings.lease_margin,
            recall: None,
            since: now,
        }
    }

    pub const fn bytes(&self) -> u64 {
        self.slabs as u64 * self.slab_bytes
    }

    pub const fn is_granted(&self) -> bool {
        matches!(self.state, GrantState::Granted(_))
    }

    /// When it is due for a check.
    pub fn wake_at(&self) -> Option<Duration> {
        let again_at = self.recall.map_or(self.lease_until, |recall| recall.again_at);
        self.is_granted().then_some(self.lease_until.min(again_at))
    }

    /// The lease that a request received at `now` gets.
    pub fn extend(&mut self, now: Duration, settings: &Settings) {
        let left = self.recall.map_or(settings.lease, |recall| {
            recall.deadline.saturating_sub(now + settings.lease_margin)
        });
        // In whole milliseconds, as in the message.
        self.lease = Duration::from_millis(settings.lease.min(left).as_millis() as u64);
        if !self.lease.is_zero() {
            self.lease_until = self.lease_until.max(now + self.lease + settings.lease_margin);
        }
    }

    pub fn ack(&self, loan: &LoanId, access: &Access) -> Body {
        Body::MemBorAck(MemBorAck {
            loan: loan.clone(),
            sequence: self.sequence,
            access: access.clone(),
            lease_ms: self.lease.as_millis() as u64,
        })
    }
}
