//! What waits until this host has stopped sending to a loan.

use std::collections::{BTreeMap, VecDeque};

use spillway_lending::{Action, Body, DeviceId, LoanId, Message};

/// Loans that are being forgotten, each on a thread of its own, and the actions that must come after that.
///
/// The lender is told that a loan has ended when no request to it is in flight, and places of the device change only
/// then. Everything else goes on, above all the renewals of other loans.
#[derive(Debug, Default)]
pub struct Forgets {
    pending: BTreeMap<LoanId, DeviceId>,
    held: VecDeque<Action>,
}

impl Forgets {
    /// A loan of a device is being forgotten from now on.
    pub fn begin(&mut self, loan: LoanId, device: DeviceId) {
        self.pending.insert(loan, device);
    }

    /// Returns the action if it may be executed now, and keeps it otherwise.
    pub fn admit(&mut self, action: Action) -> Option<Action> {
        if !self.waits(&action) {
            return Some(action);
        }
        // The machine repeats messages that have no answer.
        if !self.held.contains(&action) {
            self.held.push_back(action);
        }
        None
    }

    /// A loan is forgotten. Returns the actions that wait for nothing else, in order.
    pub fn end(&mut self, loan: &LoanId) -> Vec<Action> {
        self.pending.remove(loan);
        let held = std::mem::take(&mut self.held);
        held.into_iter().filter_map(|action| self.admit(action)).collect()
    }

    fn waits(&self, action: &Action) -> bool {
        match action {
            Action::Attach { device, .. }
            | Action::Detach { device }
            | Action::Place { device, .. } => self.pending.values().any(|its| its == device),
            Action::Send(message) => self.message_waits(message),
            _ => false,
        }
    }

    fn message_waits(&self, message: &Message) -> bool {
        let mut held = self.held.iter().filter_map(|action| match action {
            Action::Send(held) => Some(held),
            _ => None,
        });
        match &message.body {
            Body::MemBorFin(fin) => {
                self.pending.contains_key(&fin.loan)
                    || held.any(|earlier| *earlier.body.loan() == fin.loan)
            }
            // The lender has room for a new loan once it knows that the former one has ended.
            Body::MemBorReq(request) if request.holds.is_none() => {
                held.any(|earlier| earlier.to == message.to)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_lending::{CopyLocation, Epoch, MemBorFin, MemBorReq, Mode, PoolIdentity};

    use super::*;
    use crate::lender::tests::{host, loan};

    fn send(to: &str, body: Body) -> Action {
        Action::Send(Message { from: host("a.test"), to: host(to), epoch: Epoch(1), body })
    }

    fn fin(to: &str, number: u64) -> Action {
        send(to, Body::MemBorFin(MemBorFin { loan: loan("a.test", number) }))
    }

    fn request(to: &str, number: u64, holds: Option<PoolIdentity>) -> Action {
        let (loan, slab_bytes) = (loan("a.test", number), 1 << 20);
        let mode = Mode::FanOut;
        send(
            to,
            Body::MemBorReq(MemBorReq { loan, sequence: 1, slabs: 1, slab_bytes, mode, holds }),
        )
    }

    fn place(device: u32, slab: u32) -> Action {
        let place = CopyLocation::File;
        Action::Place { device: DeviceId(device), slab, copy: 1, place }
    }

    #[test]
    fn only_what_depends_on_a_loan_waits_until_it_is_forgotten() {
        let mut forgets = Forgets::default();
        forgets.begin(loan("a.test", 1), DeviceId(0));
        let waiting = [
            fin("b.test", 1),
            place(0, 3),
            Action::Detach { device: DeviceId(0) },
            request("b.test", 9, None),
            // The machine gives that request up meanwhile.
            fin("b.test", 9),
        ];
        for action in &waiting {
            assert_eq!(forgets.admit(action.clone()), None, "{action:?}");
        }
        assert_eq!(forgets.admit(fin("b.test", 1)), None, "once is enough");
        let others = [
            place(1, 3),
            Action::Detach { device: DeviceId(1) },
            fin("b.test", 2),
            request("c.test", 8, None),
            request("b.test", 2, Some(PoolIdentity(2))),
        ];
        for action in &others {
            assert_eq!(forgets.admit(action.clone()).as_ref(), Some(action));
        }
        assert_eq!(forgets.end(&loan("a.test", 1)), waiting);
        assert_eq!(forgets.admit(place(0, 3)), Some(place(0, 3)));
    }

    #[test]
    fn a_device_waits_for_all_of_its_loans() {
        let mut forgets = Forgets::default();
        for number in [1, 2] {
            forgets.begin(loan("a.test", number), DeviceId(0));
            assert_eq!(forgets.admit(fin("b.test", number)), None);
            assert_eq!(forgets.admit(place(0, number as u32)), None);
        }
        assert_eq!(forgets.end(&loan("a.test", 2)), [fin("b.test", 2)]);
        let rest = [fin("b.test", 1), place(0, 1), place(0, 2)];
        assert_eq!(forgets.end(&loan("a.test", 1)), rest);
    }
}
