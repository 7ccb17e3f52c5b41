//! What the machine wants done.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Access, DeviceId, HostId, LoanId, Message, Mode, Reason, Role};

/// Something to do, in the order given. Those that end in an event get exactly one, however long it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it, once; whether it arrives is not asked.
    Send(Message),
    /// Lender: set memory aside in full for a loan. Ends in [`crate::Event::Reserved`].
    Reserve {
        /// The loan.
        loan: LoanId,
        /// Slabs.
        slabs: u32,
        /// Bytes of each.
        slab_bytes: u64,
        /// How it will be reached.
        mode: Mode,
    },
    /// Lender: end the pool and free its memory. From here on no request of the borrower reaches it. Ends in
    /// [`crate::Event::Released`].
    Release {
        /// The loan.
        loan: LoanId,
    },
    /// Borrower: a loan was granted to a device. Comes before anything that names the loan as a place.
    Open {
        /// The device, which may not be attached yet.
        device: DeviceId,
        /// The loan.
        loan: LoanId,
        /// Who lends.
        lender: HostId,
        /// How to reach it.
        access: Access,
        /// Slabs in it.
        slabs: u32,
    },
    /// Borrower: make the device, and swap onto it. Ends in [`crate::Event::Attached`].
    Attach {
        /// The device.
        device: DeviceId,
        /// For each slab where its copies lie: the first in use for reading, and the second. None: no such copy.
        slabs: Vec<[Option<CopyLocation>; 2]>,
    },
    /// Borrower: check the headroom, swapoff, close. Ends in [`crate::Event::Detached`]. Loans are forgotten after.
    Detach {
        /// The device.
        device: DeviceId,
    },
    /// Borrower: copy what the slab holds, from any good copy, to this place, and then use it as copy `copy` instead of
    /// where that was. [`CopyLocation::File`] for a slab whose other copy is the file: see that the file has all of it.
    /// Where no good copy is left, pages that were written are lost and are errors; writes go to the new place. Ends in
    /// [`crate::Event::Placed`].
    Place {
        /// The device.
        device: DeviceId,
        /// Its slab.
        slab: u32,
        /// Which copy, 0 or 1.
        copy: u8,
        /// Where to.
        place: CopyLocation,
    },
    /// Borrower: from here on send nothing to this loan: copies in it are gone, and what is being placed in it fails. Must
    /// hold before the next action is looked at.
    Forget {
        /// The device.
        device: DeviceId,
        /// The loan.
        loan: LoanId,
    },
    /// Worth a line in the log, or a count.
    Note(Note),
}

/// Where a copy of a slab lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyLocation {
    /// In a loan.
    Lender {
        /// The loan.
        loan: LoanId,
        /// Which of its slabs: the object of its pages' keys.
        index: u32,
    },
    /// In the local file, at the slab's own place there.
    File,
}

/// What an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The role changed.
    Role {
        /// What it was.
        from: Role,
        /// What it is.
        to: Role,
    },
    /// A loan was asked for.
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
    /// A device got fewer slabs than were wanted, or copies could not be found.
    Short {
        /// The device.
        device: DeviceId,
        /// Slabs or copies that were wanted.
        wanted: u32,
        /// What was found.
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
    /// Memory could not be set aside for a loan.
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
        /// How long there is.
        deadline: Duration,
    },
    /// A loan of this lender ended because its lease did, or the recall's deadline came.
    Expired {
        /// The loan.
        loan: LoanId,
    },
    /// A loan of this borrower is lost: the lender did not renew it, or has it no longer.
    LoanLost {
        /// The loan.
        loan: LoanId,
        /// The lender.
        lender: HostId,
    },
    /// A loan has ended as it should.
    Ended {
        /// The loan.
        loan: LoanId,
        /// The host on its other side.
        with: HostId,
    },
    /// No copy of a slab is left: what was in it is lost.
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
    /// A copy is being placed for so long that others no longer wait for it. Noted once for each.
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
    /// The device could not be made; it is tried again later.
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
    /// The device could not be taken out of use; it is tried again later.
    DetachFailed {
        /// The device.
        device: DeviceId,
        /// Why.
        error: String,
    },
}
