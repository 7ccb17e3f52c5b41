//! Loans that this host requests and holds.
//!
//! A loan is requested, held while its lease is renewed, and ended by `mem_bor_fin`, which is repeated until the lender
//! has received it. Each loan belongs to one device. To end a loan, this host first stops sending to it
//! ([`Action::Forget`]), then notifies the lender.

use core::time::Duration;
use std::collections::VecDeque;

use crate::loan::{Ended, GrantedLoan, Loan, LoanState};
use crate::machine::Machine;
use crate::{
    Action, Body, BorrowedState, BorrowedView, CopyLocation, DeviceId, Epoch, HostId, LoanId,
    MemBorAck, MemBorFin, MemBorRej, MemBorReq, MemLenFin, Note, Reason,
};

/// Past requests that an answer may refer to.
const SENT_MAX: usize = 16;

impl Machine {
    fn loan_id(&self, number: u64) -> LoanId {
        LoanId { borrower: self.host.clone(), number }
    }

    /// The place of a slab of a loan.
    pub(crate) fn place_in(&self, number: u64, index: u32) -> CopyLocation {
        CopyLocation::Lender { loan: self.loan_id(number), index }
    }

    /// Asks `lender` for slabs for a device.
    pub(crate) fn ask(&mut self, lender: HostId, device: DeviceId, slabs: u32) {
        let number = self.next_loan;
        self.next_loan += 1;
        let timeout = self.settings.answer_timeout;
        self.loans.insert(
            number,
            Loan {
                lender: lender.clone(),
                device,
                used: vec![false; slabs as usize],
                slab_bytes: self.settings.slab_bytes,
                sequence: 0,
                sent: VecDeque::new(),
                state: LoanState::Asked {
                    again_at: self.now + timeout / 2,
                    until: self.now + timeout,
                },
            },
        );
        self.send_request(number);
        self.note(Note::Asked { loan: self.loan_id(number), lender, slabs });
    }

    fn send_request(&mut self, number: u64) {
        let loan_id = self.loan_id(number);
        let mode = self.settings.mode;
        let Some(loan) = self.loans.get_mut(&number) else { return };
        loan.sequence += 1;
        if loan.sent.len() == SENT_MAX {
            loan.sent.pop_front();
        }
        loan.sent.push_back((loan.sequence, self.now));
        let holds = match &loan.state {
            LoanState::Held(held) => Some(held.pool),
            LoanState::Asked { .. } => None,
        };
        let request = MemBorReq {
            loan: loan_id,
            sequence: loan.sequence,
            slabs: loan.used.len() as u32,
            slab_bytes: loan.slab_bytes,
            mode,
            holds,
        };
        let lender = loan.lender.clone();
        self.send(&lender, Body::MemBorReq(request));
    }

    /// Whether this host waits for an answer from `host`.
    pub(crate) fn asks(&self, host: &HostId) -> bool {
        self.loans.values().any(|loan| !loan.is_held() && loan.lender == *host)
    }

    /// `mem_bor_ack`.
    pub(crate) fn acked(&mut self, from: &HostId, epoch: Epoch, ack: MemBorAck) {
        let MemBorAck { loan: id, sequence, access, lease_ms } = ack;
        let lease = Duration::from_millis(lease_ms);
        let (now, retry) = (self.now, self.settings.answer_timeout);
        let Some(loan) = self.loans.get_mut(&id.number) else {
            // From an earlier epoch, given up, or ended: this host will never use it.
            return self.send(from, Body::MemBorFin(MemBorFin { loan: id }));
        };
        if loan.lender != *from {
            return;
        }
        let Some(sent_at) = loan.sent_at(sequence) else { return };
        let until = sent_at + lease;
        let renew_at = (sent_at + lease / 3).max(now + retry / 2);
        match &mut loan.state {
            LoanState::Asked { .. } if until > now => {
                let pool = access.pool;
                let (device, slabs) = (loan.device, loan.used.len() as u32);
                let held = GrantedLoan {
                    pool,
                    epoch,
                    lease_until: until,
                    renew_at,
                    is_recalled: false,
                    is_suspect: false,
                };
                loan.state = LoanState::Held(held);
                self.note(Note::Granted { loan: id.clone(), lender: from.clone() });
                self.out.push(Action::Open {
                    device,
                    loan: id,
                    lender: from.clone(),
                    access,
                    slabs,
                });
            }
            // The answer took longer than the lease, so it is useless.
            LoanState::Asked { .. } => {}
            // The granted memory is gone, and other memory was granted under the same number.
            LoanState::Held(held) if held.pool != access.pool => self.lose_loan(id.number),
            LoanState::Held(held) => {
                held.lease_until = held.lease_until.max(until);
                held.renew_at = held.renew_at.max(renew_at);
                held.epoch = epoch;
                held.is_suspect = false;
            }
        }
    }

    /// `mem_bor_rej`.
    pub(crate) fn rejected(&mut self, from: &HostId, rej: &MemBorRej) {
        let number = rej.loan.number;
        if rej.reason == Reason::Unknown
            && self.ended.get(&number).is_some_and(|ended| ended.lender == *from)
        {
            self.ended.remove(&number);
            self.note(Note::Ended { loan: rej.loan.clone(), with: from.clone() });
            return;
        }
        let Some(loan) = self.loans.get(&number) else { return };
        if loan.lender != *from || loan.sent_at(rej.sequence).is_none() {
            return;
        }
        let (device, slab_bytes) = (loan.device, loan.slab_bytes);
        if !loan.is_held() {
            self.loans.remove(&number);
            let bytes = u64::from(rej.spare_slabs) * slab_bytes;
            self.refused(device, from, Some((rej.reason, bytes)));
            let reason = Some(rej.reason);
            self.note(Note::Refused { loan: rej.loan.clone(), lender: from.clone(), reason });
        } else if rej.reason == Reason::Unknown {
            self.lose_loan(number);
        }
    }

    /// `mem_len_fin`.
    pub(crate) fn recalled(&mut self, from: &HostId, fin: &MemLenFin) {
        let number = fin.loan.number;
        let Some(loan) = self.loans.get_mut(&number) else {
            return self.send(from, Body::MemBorFin(MemBorFin { loan: fin.loan.clone() }));
        };
        if loan.lender != *from {
            return;
        }
        let deadline = Duration::from_millis(fin.deadline_ms);
        match &mut loan.state {
            LoanState::Asked { .. } => self.give_up_asking(number, Some((Reason::NoRoom, 0))),
            LoanState::Held(held) => {
                let is_new = !held.is_recalled;
                held.is_recalled = true;
                let device = loan.device;
                if is_new {
                    self.loan_recalled(device, from);
                    let (loan, lender) = (fin.loan.clone(), from.clone());
                    self.note(Note::Recalled { loan, lender, deadline });
                }
            }
        }
    }

    /// A lender with a new epoch may have lost its loans, so it is asked at once, and only once. If each of its
    /// messages caused another query, so would its answers, and two loans would soon flood the network.
    pub(crate) fn lender_lives(&mut self, from: &HostId, epoch: Epoch) {
        let now = self.now;
        for loan in self.loans.values_mut().filter(|loan| loan.lender == *from) {
            if let LoanState::Held(held) = &mut loan.state
                && held.epoch != epoch
            {
                held.renew_at = held.renew_at.min(now);
                held.epoch = epoch;
            }
        }
    }

    /// Stops waiting for an answer. The lender may have granted the loan, so it is notified.
    fn give_up_asking(&mut self, number: u64, why: Option<(Reason, u64)>) {
        let Some(loan) = self.loans.get(&number) else { return };
        let (device, lender) = (loan.device, loan.lender.clone());
        self.end_loan(number);
        self.refused(device, &lender, why);
        let reason = why.map(|(reason, _)| reason);
        self.note(Note::Refused { loan: self.loan_id(number), lender, reason });
    }

    /// Ends a loan without copies.
    pub(crate) fn end_loan(&mut self, number: u64) {
        let Some(loan) = self.loans.remove(&number) else { return };
        let id = self.loan_id(number);
        if loan.is_held() {
            self.out.push(Action::Forget { device: loan.device, loan: id.clone() });
        }
        let again_at = self.now + self.settings.answer_timeout;
        let until = self.now + (self.settings.lease + self.settings.lease_margin) * 2;
        self.send(&loan.lender, Body::MemBorFin(MemBorFin { loan: id }));
        self.ended.insert(number, Ended { lender: loan.lender, again_at, until });
    }

    /// The lender no longer has the loan, or may not have it: stops using it.
    fn lose_loan(&mut self, number: u64) {
        let Some(loan) = self.loans.get(&number) else { return };
        let (device, lender) = (loan.device, loan.lender.clone());
        let id = self.loan_id(number);
        self.note(Note::LoanLost { loan: id.clone(), lender });
        self.end_loan(number);
        self.loan_lost(device, &id);
    }

    /// Stops using loans whose lease has run out. Runs first at every event.
    pub(crate) fn expire_loans(&mut self) {
        let now = self.now;
        let is_over =
            |loan: &Loan| matches!(&loan.state, LoanState::Held(held) if now >= held.lease_until);
        let over: Vec<u64> = self
            .loans
            .iter()
            .filter(|(_, loan)| is_over(loan))
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.lose_loan(number);
        }
    }

    /// Performs work that is due: repeats requests, renews leases, and repeats unacknowledged ends.
    pub(crate) fn tend_loans(&mut self) {
        let (now, timeout) = (self.now, self.settings.answer_timeout);
        let mut again = Vec::new();
        let mut unanswered = Vec::new();
        for (number, loan) in &mut self.loans {
            match &mut loan.state {
                LoanState::Asked { until, .. } if now >= *until => unanswered.push(*number),
                LoanState::Asked { again_at: at, .. }
                | LoanState::Held(GrantedLoan { renew_at: at, .. })
                    if now >= *at =>
                {
                    *at = now + timeout;
                    again.push(*number);
                }
                _ => {}
            }
        }
        for number in again {
            self.send_request(number);
        }
        for number in unanswered {
            self.give_up_asking(number, None);
        }
        self.ended.retain(|_, ended| now < ended.until);
        let mut fins = Vec::new();
        for (number, ended) in self.ended.iter_mut().filter(|(_, ended)| now >= ended.again_at) {
            ended.again_at = now + timeout;
            fins.push((*number, ended.lender.clone()));
        }
        for (number, lender) in fins {
            let fin = MemBorFin { loan: self.loan_id(number) };
            self.send(&lender, Body::MemBorFin(fin));
        }
    }

    /// The operators' view of the loans that this host requests and holds.
    pub(crate) fn borrowed_views(&self) -> Vec<BorrowedView> {
        let view = |(number, loan): (&u64, &Loan)| {
            let (state, until) = match &loan.state {
                LoanState::Asked { .. } => (BorrowedState::Asked, Duration::ZERO),
                LoanState::Held(held) if held.is_recalled => {
                    (BorrowedState::Recalled, held.lease_until)
                }
                LoanState::Held(held) => (BorrowedState::Held, held.lease_until),
            };
            BorrowedView {
                loan: self.loan_id(*number),
                lender: loan.lender.clone(),
                device: loan.device,
                bytes: loan.used.len() as u64 * loan.slab_bytes,
                state,
                lease_ms: until.saturating_sub(self.now).as_millis() as u64,
            }
        };
        self.loans.iter().map(view).collect()
    }
}
