//! Why an action of the state machine or an operator's order fails.

use std::io;
use std::path::PathBuf;

use spillway_lending::{HostId, LoanId, PlaceFailure};
use spillway_types::Size;

/// Each is one line for the log or an operator, and uses the setting names of the daemon's configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel, or the privileged helper, refuses.
    #[error("{0}")]
    Kernel(Box<dyn std::error::Error + Send + Sync>),
    /// A device can't be served on its socket.
    #[error("{}: {error}", path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A lender refuses this host's connection to a loan.
    #[error("lender {lender} at {address}: {error}")]
    Lender {
        /// Who.
        lender: HostId,
        /// Where.
        address: String,
        /// Why.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Kernels do not resolve host names.
    #[error("lender {lender}: '{address}' is not a numeric address")]
    Address {
        /// Who.
        lender: HostId,
        /// What it says.
        address: String,
    },
    /// In direct mode a lender must name the subsystem of its devices.
    #[error("lender {0} names no subsystem")]
    NoSubsystem(HostId),
    /// A loan ended before it was needed.
    #[error("the loan {0} is not held any more")]
    NotHeld(LoanId),
    /// The state machine requested something else in direct mode.
    #[error("a device in direct mode lies in one loan")]
    NotOneLoan,
    /// A device was closed.
    #[error("the device is gone")]
    NoDevice,
    /// A direct-mode device has no slabs.
    #[error("slabs don't move in direct mode")]
    Unmovable,
    /// A device without slabs has no copies.
    #[error("only a device of slabs has a local file")]
    NoSlabs,
    /// The kernel connects to the lender itself, so there is nothing to serve.
    #[error("lend.device = \"socket\" is for fan-out")]
    NotServed,
    /// No file or disk for copies is configured.
    #[error("there is no lend.backup_file")]
    NoBackupFile,
    /// The file for a copy was not opened.
    #[error("the device has no local file")]
    NoFile,
    /// Pages that come back would not fit in memory.
    #[error(
        "{} lie on {path}, and {} are available with other swap: free {} first, or add swap",
        Size(*used_bytes), Size(*room_bytes), Size(*missing_bytes)
    )]
    Headroom {
        /// The device.
        path: String,
        /// Used bytes on it.
        used_bytes: u64,
        /// The host's available memory.
        room_bytes: u64,
        /// What it lacks.
        missing_bytes: u64,
    },
    /// The request exceeds what this host may lend.
    #[error("lend.capacity is {}, and {} are lent", Size(*capacity_bytes), Size(*lent_bytes))]
    Capacity {
        /// The most that may be lent.
        capacity_bytes: u64,
        /// What is lent.
        lent_bytes: u64,
    },
    /// Borrowers could not reach a pool.
    #[error("it has no listen.nvme_tls")]
    NoPools,
    /// Kernels could not reach a device.
    #[error("it has no listen.nvme_tcp")]
    NoBlocks,
    /// An order to borrow, to a host that only lends.
    #[error("lend.roles of this host is \"lend\": it does not borrow")]
    LendsOnly,
    /// Why the state machine refuses an order to borrow now.
    #[error("{0}")]
    CannotBorrow(&'static str),
    /// The driver is overloaded.
    #[error("too many orders wait; try again")]
    ManyOrders,
    /// The runtime does not start.
    #[error("can't start lending: {0}")]
    Start(io::Error),
    /// The store refuses a loan.
    #[error(transparent)]
    Store(#[from] spillway_directory::Error),
    /// A device of slabs can't be created, or a slab can't be moved.
    #[error(transparent)]
    FanOut(#[from] spillway_fanout::Error),
    /// Keys can't be used.
    #[error(transparent)]
    Tls(#[from] spillway_tls::Error),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// The failure of placing a copy, for the machine.
    pub fn of_placing(&self) -> PlaceFailure {
        let has_begun = matches!(
            self,
            Self::FanOut(
                spillway_fanout::Error::PlaceLost(_) | spillway_fanout::Error::Unreadable(_)
            )
        );
        PlaceFailure { why: self.to_string(), is_untouched: !has_begun }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_untouched_unless_pages_were_on_their_way() {
        use spillway_fanout::Error as FanOut;
        let is_untouched = |error: Error| error.of_placing().is_untouched;
        assert!(is_untouched(Error::NoDevice));
        assert!(is_untouched(FanOut::SamePlace(1).into()));
        assert!(is_untouched(FanOut::Moving(1).into()));
        assert!(!is_untouched(FanOut::PlaceLost(1).into()));
        assert!(!is_untouched(FanOut::Unreadable(1).into()));
    }
}
