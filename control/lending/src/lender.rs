//! This host's loans to others.
//!
//! A loan's memory is reserved in full before it is granted. The loan ends when the borrower ends it, or when its lease
//! has run out. The borrower counts the lease from when it sent the answered request. This host counts from when it
//! received that request, plus a margin, so the borrower always stops before the memory is taken back. A recall never
//! shortens a lease; it only prevents new leases beyond the deadline.

use core::time::Duration;

use crate::lent::{GrantState, Lent, Recall};
use crate::machine::Machine;
use crate::{
    Access, Action, Body, Epoch, HostId, LentState, LentView, LoanId, MemBorAck, MemBorRej,
    MemBorReq, MemLenFin, Note, Reason, Role, Roles,
};

impl Machine {
    /// Total size of the loans that this host gives.
    pub fn lent_bytes(&self) -> u64 {
        self.lent.values().map(Lent::bytes).sum()
    }

    /// A borrower with a new epoch may have lost its devices, so it is asked whether it knows its earlier loans.
    /// A borrower that does not answers `mem_bor_fin`. If the message was only late, a borrower that does answers
    /// nothing.
    pub(crate) fn borrower_lives(&mut self, from: &HostId, epoch: Epoch) {
        let mut probes = Vec::new();
        let first = LoanId { borrower: from.clone(), number: 0 };
        for (loan, lent) in self.lent.range_mut(first..) {
            if loan.borrower != *from {
                break;
            }
            let is_new = lent.epoch.is_some_and(|its| its != epoch) && lent.probed != Some(epoch);
            if let GrantState::Granted(access) = &lent.state
                && is_new
            {
                lent.probed = Some(epoch);
                probes.push(MemBorAck {
                    loan: loan.clone(),
                    sequence: 0,
                    access: access.clone(),
                    lease_ms: 0,
                });
            }
        }
        for probe in probes {
            self.send(from, Body::MemBorAck(probe));
        }
    }

    /// `mem_bor_req`.
    pub(crate) fn requested(&mut self, from: HostId, epoch: Epoch, request: MemBorReq) {
        let MemBorReq { loan, sequence, slabs, slab_bytes, mode, holds } = request;
        let Some(lent) = self.lent.get_mut(&loan) else {
            if holds.is_some() {
                return self.reject(&loan, sequence, Reason::Unknown, slab_bytes);
            }
            if let Some(reason) = self.why_not_lend(&from, u64::from(slabs) * slab_bytes) {
                self.note(Note::Rejected { loan: loan.clone(), reason });
                return self.reject(&loan, sequence, reason, slab_bytes);
            }
            let mut lent = Lent {
                slabs,
                slab_bytes,
                epoch: Some(epoch),
                probed: None,
                state: GrantState::Reserving { is_over: false },
                sequence,
                lease: Duration::ZERO,
                lease_until: Duration::ZERO,
                recall: None,
                since: self.now,
            };
            lent.extend(self.now, &self.settings);
            self.lent.insert(loan.clone(), lent);
            self.out.push(Action::Reserve { loan, slabs, slab_bytes, mode });
            return;
        };
        let is_other = match &lent.state {
            GrantState::Granted(access) => holds.is_some_and(|pool| pool != access.pool),
            GrantState::Reserving { .. } => holds.is_some(),
            GrantState::Releasing => true,
        };
        if is_other {
            return self.reject(&loan, sequence, Reason::Unknown, slab_bytes);
        }
        // The answer to a later request also answers an overtaken one.
        if sequence < lent.sequence {
            return;
        }
        if sequence > lent.sequence {
            lent.sequence = sequence;
            lent.epoch = Some(epoch);
            lent.extend(self.now, &self.settings);
        }
        if let GrantState::Granted(access) = &lent.state {
            let ack = lent.ack(&loan, access);
            self.send(&from, ack);
        }
    }

    /// Why a grant of `bytes` is refused, if it is.
    fn why_not_lend(&mut self, from: &HostId, bytes: u64) -> Option<Reason> {
        if self.is_draining {
            return Some(Reason::Draining);
        }
        let has_room = bytes <= self.room_bytes();
        if self.settings.roles == Roles::Single {
            // If two hosts ask each other, the one whose name sorts first gets its loan if the other can grant it.
            if self.role() == Role::Neutral && has_room && *from < self.host && self.asks(from) {
                self.stop_asking();
            }
            if self.is_waiting() || matches!(self.role(), Role::Borrower | Role::Both) {
                return Some(Reason::Busy);
            }
        }
        (!has_room).then_some(Reason::NoRoom)
    }

    fn reject(&mut self, loan: &LoanId, sequence: u32, reason: Reason, slab_bytes: u64) {
        let room = if self.is_draining || reason == Reason::Busy { 0 } else { self.room_bytes() };
        let spare_slabs =
            u32::try_from(room / slab_bytes).unwrap_or(u32::MAX).min(crate::LOAN_SLABS_MAX);
        let rej = MemBorRej { loan: loan.clone(), sequence, reason, spare_slabs };
        self.send(&loan.borrower, Body::MemBorRej(rej));
    }

    /// [`crate::Event::Reserved`].
    pub(crate) fn reserved(&mut self, loan: LoanId, result: Result<Access, String>) {
        let Some(lent) = self.lent.get_mut(&loan) else { return };
        let GrantState::Reserving { is_over } = lent.state else { return };
        let (sequence, slabs, slab_bytes) = (lent.sequence, lent.slabs, lent.slab_bytes);
        match result {
            Ok(access) if !is_over && self.now < lent.lease_until => {
                let ack = lent.ack(&loan, &access);
                lent.state = GrantState::Granted(access);
                self.send(&loan.borrower, ack);
                self.note(Note::Lent { loan, slabs });
            }
            Ok(_) => self.release(&loan),
            Err(error) => {
                self.lent.remove(&loan);
                if !is_over {
                    self.reject(&loan, sequence, Reason::Failed, slab_bytes);
                }
                self.note(Note::ReserveFailed { loan, error });
            }
        }
    }

    /// `mem_bor_fin`.
    pub(crate) fn finished(&mut self, from: &HostId, loan: &LoanId) {
        let mut slab_bytes = self.settings.slab_bytes;
        if let Some(lent) = self.lent.get_mut(loan) {
            slab_bytes = lent.slab_bytes;
            match &mut lent.state {
                GrantState::Reserving { is_over } => *is_over = true,
                GrantState::Granted(_) => {
                    self.release(loan);
                    self.note(Note::Ended { loan: loan.clone(), with: from.clone() });
                }
                GrantState::Releasing => {}
            }
        }
        debug_assert_eq!(*from, loan.borrower);
        self.reject(loan, 0, Reason::Unknown, slab_bytes);
    }

    fn release(&mut self, loan: &LoanId) {
        if let Some(lent) = self.lent.get_mut(loan) {
            lent.state = GrantState::Releasing;
            self.out.push(Action::Release { loan: loan.clone() });
        }
    }

    /// [`crate::Event::Released`].
    pub(crate) fn released(&mut self, loan: &LoanId) {
        if self.lent.get(loan).is_some_and(|lent| matches!(lent.state, GrantState::Releasing)) {
            self.lent.remove(loan);
        }
    }

    /// Recalls the newest loans until the rest, if fully used, leave this host below its upper threshold.
    pub(crate) fn recall_for_pressure(&mut self) {
        let leaving =
            |lent: &Lent| lent.recall.is_some() || matches!(lent.state, GrantState::Releasing);
        let mut excess = self.excess_bytes();
        let mut loans: Vec<_> = self
            .lent
            .iter()
            .map(|(loan, lent)| (!leaving(lent), lent.since, loan.clone()))
            .collect();
        // Counts loans that are ending first, then the newest.
        loans.sort_by(|one, other| (one.0, other.1).cmp(&(other.0, one.1)));
        for (_, _, loan) in loans {
            if excess == 0 {
                return;
            }
            excess = excess.saturating_sub(self.lent.get(&loan).map_or(0, Lent::bytes));
            self.recall(&loan);
        }
    }

    fn recall(&mut self, loan: &LoanId) {
        let deadline = self.settings.recall_deadline;
        let Some(lent) = self.lent.get_mut(loan) else { return };
        match &mut lent.state {
            GrantState::Reserving { is_over: is_over @ false } => {
                *is_over = true;
                let (sequence, slab_bytes) = (lent.sequence, lent.slab_bytes);
                let reason = if self.is_draining { Reason::Draining } else { Reason::NoRoom };
                self.reject(loan, sequence, reason, slab_bytes);
            }
            GrantState::Granted(_) if lent.recall.is_none() => {
                lent.recall = Some(Recall { deadline: self.now + deadline, again_at: self.now });
                self.note(Note::Recalling { loan: loan.clone(), deadline });
            }
            _ => {}
        }
    }

    /// Performs work that is due.
    pub(crate) fn tend_lent(&mut self) {
        if self.is_draining {
            let loans: Vec<LoanId> = self.lent.keys().cloned().collect();
            for loan in loans {
                self.recall(&loan);
            }
        }
        let (now, again) = (self.now, self.settings.answer_timeout);
        let mut over = Vec::new();
        let mut reminders = Vec::new();
        for (loan, lent) in self.lent.iter_mut().filter(|(_, lent)| lent.is_granted()) {
            if now >= lent.lease_until {
                over.push(loan.clone());
            } else if let Some(recall) = &mut lent.recall
                && now >= recall.again_at
            {
                recall.again_at = now + again;
                let deadline_ms = recall.deadline.saturating_sub(now).as_millis() as u64;
                reminders.push(MemLenFin { loan: loan.clone(), deadline_ms });
            }
        }
        for fin in reminders {
            self.send(&fin.loan.borrower.clone(), Body::MemLenFin(fin));
        }
        for loan in over {
            self.release(&loan);
            self.note(Note::Expired { loan });
        }
    }

    /// The operators' view of the loans that this host has given.
    pub(crate) fn lent_views(&self) -> Vec<LentView> {
        let view = |(loan, lent): (&LoanId, &Lent)| LentView {
            loan: loan.clone(),
            bytes: lent.bytes(),
            state: match (&lent.state, lent.recall) {
                (GrantState::Reserving { .. }, _) => LentState::Reserving,
                (GrantState::Granted(_), None) => LentState::Lent,
                (GrantState::Granted(_), Some(_)) => LentState::Recalled,
                (GrantState::Releasing, _) => LentState::Releasing,
            },
            lease_ms: lent.lease_until.saturating_sub(self.now).as_millis() as u64,
        };
        self.lent.iter().map(view).collect()
    }
}
