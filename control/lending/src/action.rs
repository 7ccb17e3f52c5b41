//! The state machine's actions.

use core::time::Duration;

use crate::{Access, CopyLocation, DeviceId, HostId, LoanId, Message, Mode, Reason, Role};

/// An action; execute them in order. Those that end in an event get exactly one, however long they take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message once, without a delivery report.
    Send(Message),
    /// Lender: reserve the full memory of a loan. Ends in [`crate::Event::Reserved`].
    Reserve {
        /// The loan.
        loan: LoanId,
        /// Slabs.
        slabs: u32,
        /// Bytes of each.
        slab_bytes: u64,
        /// How the borrower reaches it.
        mode: Mode,
    },
    /// Lender: destroy the pool and free its memory. From then on no request of the borrower reaches it.
    /// Ends in [`crate::Event::Released`].
    Release {
        /// The loan.
        loan: LoanId,
    },
    /// Borrower: a loan was granted for a device. Comes before any action with a place in the loan.
    Open {
        /// The device, which may not be attached yet.
        device: DeviceId,
        /// The loan.
        loan: LoanId,
        /// The lender.
        lender: HostId,
        /// How to reach it.
        access: Access,
        /// Slabs in it.
        slabs: u32,
    },
    /// Borrower: create the device, and swap onto it. Ends in [`crate::Event::Attached`].
    Attach {
        /// The device.
        device: DeviceId,
        /// The places of each slab's copies: the first, which is used for reading, and the second. None: no such
        /// copy.
        slabs: Vec<[Option<CopyLocation>; 2]>,
    },
    /// Borrower: check the headroom, swapoff, close. Ends in [`crate::Event::Detached`]. Loans are forgotten after.
    Detach {
        /// The device.
        device: DeviceId,
    },
    /// Borrower: copy the slab's pages, from any good copy, to this place, and then use it as copy `copy` instead of
    /// the former place. [`CopyLocation::File`] for a slab whose other copy is the file: ensure that the file has all
    /// of it. If no good copy is left, written pages are lost and return errors; writes go to the new place. Ends in
    /// [`crate::Event::Placed`].
    Place {
        /// The device.
        device: DeviceId,
        /// Its slab.
        slab: u32,
        /// Which copy, 0 or 1.
        copy: u8,
        /// The new place.
        place: CopyLocation,
    },
    /// Borrower: send nothing more to this loan. Its copies are gone, and moves into it fail. Must be complete before
    /// the next action for the device, before the lender is told that the loan has ended, and before the lender is asked
    /// for a new one.
    Forget {
        /// The device.
        device: DeviceId,
        /// The loan.
        loan: LoanId,
    },
    /// A note for the log or a counter.
    Note(Note),
}

/// Notes for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The role changed.
    Role {
        /// What it was.
        from: Role,
        /// What it is.
        to: Role,
    },
    /// A loan was requested.
    Asked {
        /// The loan.
        loan: LoanId,
        /// Of whom.
        lender: HostId,
        /// Slabs.
        slabs: u32,
    },
    /// A loan was granted to this host.
    Granted {
        /// The loan.
        loan: LoanId,
        /// By whom.
        lender: HostId,
    },
    /// A lender refused.
    Refused {
        /// The loan.
        loan: LoanId,
        /// Who refused.
        lender: HostId,
        /// Why; none when it did not answer in time.
        reason: Option<Reason>,
    },
    /// A device got fewer slabs than requested, or places for copies could not be found.
    Short {
        /// The device.
        device: DeviceId,
        /// Requested slabs or copies.
        wanted: u32,
        /// Found slabs or copies.
        got: u32,
    },
    /// The operator's order to borrow can't be followed.
    CannotBorrow {
        /// Why, and what to do.
        why: &'static str,
    },
    /// This host lends.
    Lent {
        /// The loan.
        loan: LoanId,
        /// Slabs.
        slabs: u32,
    },
    /// This host refused to lend.
    Rejected {
        /// The loan.
        loan: LoanId,
        /// Why.
        reason: Reason,
    },
    /// Memory could not be reserved for a loan.
    ReserveFailed {
        /// The loan.
        loan: LoanId,
        /// Why.
        error: String,
    },
    /// This host recalls a loan.
    Recalling {
        /// The loan.
        loan: LoanId,
        /// How long the borrower has.
        deadline: Duration,
    },
    /// A lender recalls a loan from this host.
    Recalled {
        /// The loan.
        loan: LoanId,
        /// The lender.
        lender: HostId,
        /// The time left.
        deadline: Duration,
    },
    /// This lender ended a loan because its lease ran out or the recall's deadline passed.
    Expired {
        /// The loan.
        loan: LoanId,
    },
    /// This borrower lost a loan: the lender did not renew it, or no longer has it.
    LoanLost {
        /// The loan.
        loan: LoanId,
        /// The lender.
        lender: HostId,
    },
    /// A loan has ended normally.
    Ended {
        /// The loan.
        loan: LoanId,
        /// The host on its other side.
        with: HostId,
    },
    /// No copy of a slab is left: its pages are lost.
    SlabLost {
        /// The device.
        device: DeviceId,
        /// The slab.
        slab: u32,
    },
    /// A copy of a slab lies in a new place.
    Moved {
        /// The device.
        device: DeviceId,
        /// The slab.
        slab: u32,
        /// Which copy.
        copy: u8,
        /// Where.
        place: CopyLocation,
    },
    /// A move of a copy takes so long that others no longer wait for it. Noted once for each move.
    MoveSlow {
        /// The device.
        device: DeviceId,
        /// The slab.
        slab: u32,
        /// Where it is being placed.
        place: CopyLocation,
        /// For how long.
        took: Duration,
    },
    /// A copy could not be placed.
    MoveFailed {
        /// The device.
        device: DeviceId,
        /// The slab.
        slab: u32,
        /// Why.
        error: String,
    },
    /// The device is in use.
    Attached {
        /// The device.
        device: DeviceId,
        /// Its slabs.
        slabs: u32,
    },
    /// The device could not be created; retried later.
    AttachFailed {
        /// The device.
        device: DeviceId,
        /// Why.
        error: String,
    },
    /// The device is gone.
    Detached {
        /// The device.
        device: DeviceId,
    },
    /// The device could not be taken out of use; retried later.
    DetachFailed {
        /// The device.
        device: DeviceId,
        /// Why.
        error: String,
    },
}
