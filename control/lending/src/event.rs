//! What the machine is told.

use crate::{Access, CopyLocation, DeviceId, HostId, LoanId, Message};

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed. To be told at the latest at [`crate::Machine::wake_at`]; more often does no harm.
    Tick,
    /// The memory was read, once a monitoring period.
    Memory(Reading),
    /// A message arrived, and its sender is who it says.
    Received(Message),
    /// The hosts that there are, this one left out. Discovery alone: that a host is missing never ends a loan.
    Peers(Vec<Peer>),
    /// The operator wants something.
    Operator(Order),
    /// What came of [`crate::Action::Reserve`]; an error's text is for the log.
    Reserved {
        /// The loan.
        loan: LoanId,
        /// How the borrower reaches it.
        result: Result<Access, String>,
    },
    /// [`crate::Action::Release`] is done: the memory is free.
    Released {
        /// The loan.
        loan: LoanId,
    },
    /// What came of [`crate::Action::Attach`]; after an error nothing of the device is left.
    Attached {
        /// The device.
        device: DeviceId,
        /// Whether the kernel swaps onto it.
        result: Result<(), String>,
    },
    /// What came of [`crate::Action::Detach`]; after an error the device is still in use.
    Detached {
        /// The device.
        device: DeviceId,
        /// Whether nothing uses it any more.
        result: Result<(), String>,
    },
    /// What came of [`crate::Action::Place`]; each gets one answer. After an error the copy lies where it lay before.
    Placed {
        /// The device.
        device: DeviceId,
        /// Its slab.
        slab: u32,
        /// Which copy, 0 or 1.
        copy: u8,
        /// Where to.
        place: CopyLocation,
        /// Whether it is there, whole, and used instead of where it was.
        result: Result<(), String>,
    },
    /// The data plane gave up a copy because its lender or the local file failed: it is stale from now on, and is not used
    /// again. Told once or more often for each slab; a copy that was being placed there fails by [`Event::Placed`].
    LostPlace {
        /// The device.
        device: DeviceId,
        /// Its slab.
        slab: u32,
        /// The loan in which the copy was; none for the local file.
        loan: Option<LoanId>,
    },
}

/// The memory of this host at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// All of it (Mt).
    pub total_bytes: u64,
    /// In use (Mu): by MemAvailable, or as the paper has it.
    pub used_bytes: u64,
    /// Of `used_bytes`, what holds pages of hosts to which this one lends.
    pub lent_used_bytes: u64,
    /// What each borrowed device holds: what swapoff would bring back (together Su, but without swap that is not
    /// borrowed, which stays where it is).
    pub devices: Vec<(DeviceId, u64)>,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub host: HostId,
    /// Where it stands; hosts of one rack may fail together. Empty is a rack like any other.
    pub rack: String,
    /// What it said last that it can spare. It may be stale, and is but a weight.
    pub spare_bytes: u64,
}

/// What an operator can want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Borrow a device of so many slabs now, whatever the memory says; it is kept until `Return`.
    Borrow(u32),
    /// Give back all that is borrowed, and borrow nothing until memory was below the lower threshold or the
    /// operator says `Borrow` or `Resume`.
    Return,
    /// Give back all that is borrowed, recall all that is lent, and do neither again until `Resume`.
    Drain,
    /// Take part again.
    Resume,
}

/// A loan that a lender's store kept over a restart of the daemon: its pool is there, with its pages. Loans that the
/// store kept and that are not handed to the machine at its start must be freed by whoever drives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The loan.
    pub loan: LoanId,
    /// How its borrower reaches it, with the pool's identity as before.
    pub access: Access,
    /// Slabs.
    pub slabs: u32,
    /// Bytes of each.
    pub slab_bytes: u64,
}
