//! The state machine's events.

use crate::{Access, CopyLocation, DeviceId, HostId, LoanId, Message};

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed. Send it at the latest at [`crate::Machine::wake_at`]; more often is harmless.
    Tick,
    /// The memory was read, once a monitoring period.
    Memory(Reading),
    /// A message arrived, and its sender is authenticated.
    Received(Message),
    /// All known hosts except this one. This is only discovery: a missing host never ends a loan.
    Peers(Vec<Peer>),
    /// An order of the operator.
    Operator(Order),
    /// Why this host's kernel could not use borrowed memory, or return it; none if it can. Nothing more is borrowed
    /// meanwhile.
    Obstacle(Option<&'static str>),
    /// The result of [`crate::Action::Reserve`]; an error's text is for the log.
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
    /// The result of [`crate::Action::Attach`]; after an error nothing of the device is left.
    Attached {
        /// The device.
        device: DeviceId,
        /// Whether the kernel swaps onto it.
        result: Result<(), String>,
    },
    /// The result of [`crate::Action::Detach`]; after an error the device is still in use.
    Detached {
        /// The device.
        device: DeviceId,
        /// Whether nothing uses it any more.
        result: Result<(), String>,
    },
    /// The result of [`crate::Action::Place`]; each gets one answer. After an error the copy stays at its former
    /// place.
    Placed {
        /// The device.
        device: DeviceId,
        /// Its slab.
        slab: u32,
        /// Which copy, 0 or 1.
        copy: u8,
        /// Where to.
        place: CopyLocation,
        /// Whether the new copy is complete and in use.
        result: Result<(), PlaceFailure>,
    },
    /// The data plane gave up copies because their lender or the local file failed. They are stale from now on, and are
    /// not used again. Each is in at least one such event; a copy in transit there fails by [`Event::Placed`].
    LostPlaces {
        /// The device.
        device: DeviceId,
        /// All copies that are lost now.
        lost: Vec<LostPlace>,
    },
}

/// A copy that could not be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceFailure {
    /// Why.
    pub why: String,
    /// Nothing was sent to the place, so no late write reaches it, and another copy can be placed there.
    pub is_untouched: bool,
}

/// A copy of a slab that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPlace {
    /// The slab.
    pub slab: u32,
    /// Where the copy was.
    pub place: CopyLocation,
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
    /// Used bytes of each borrowed device, which swapoff would bring back (together Su, without local swap,
    /// which stays).
    pub devices: Vec<(DeviceId, u64)>,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub host: HostId,
    /// Its rack; hosts of one rack may fail together. The empty name is a rack like any other.
    pub rack: String,
    /// Its last reported spare memory. It may be stale, and is only a weight.
    pub spare_bytes: u64,
}

/// An operator's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Borrow a device of this many slabs now, whatever the memory use; keep it until `Return`.
    Borrow(u32),
    /// Return all borrowed memory, and borrow nothing until memory use was below the lower threshold or the
    /// operator orders `Borrow` or `Resume`.
    Return,
    /// Return all borrowed memory, recall all loans, and do neither again until `Resume`.
    Drain,
    /// Lend and borrow again.
    Resume,
}

/// A loan that a lender's store kept across a restart of the daemon, with its pool and pages. The driver must free
/// kept loans that it does not pass to the machine at its start.
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
