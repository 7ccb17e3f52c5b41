//! Requests and responses about lending.

use serde::{Deserialize, Serialize};

/// This host's loans and borrowed devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendStatus {
    /// This host's name: the DNS name in its certificate.
    pub host: String,
    /// `neutral`, `borrower`, `lender` or `both`; `off` if lending is off.
    pub role: String,
    /// Whether it waits for lenders to answer.
    pub waiting: bool,
    /// Whether the operator drains it.
    pub draining: bool,
    /// Whether actions that change this host are only logged (`lend.dry_run`).
    pub dry_run: bool,
    /// The privileged process that swaps onto borrowed memory and off it: `ok`, `silent` (it does not answer), `gone`,
    /// or `none` if this host needs none.
    #[serde(default)]
    pub helper: String,
    /// How it borrows: `fan-out` or `direct`.
    pub mode: String,
    /// Where the second copy of each page lies: `none`, `mirror` or `file`.
    pub backup: String,
    /// What it would lend now, bytes.
    pub spare_bytes: u64,
    /// Size of the loans that it has given, bytes.
    pub lent_bytes: u64,
    /// Size of the loans that it holds, bytes.
    pub borrowed_bytes: u64,
    /// Its memory at the last sample.
    pub memory: LendMemory,
    /// The loans that it has given.
    pub lent: Vec<LentLoan>,
    /// The loans that it holds or has requested.
    pub borrowed: Vec<BorrowedLoan>,
    /// The devices that consist of them.
    pub devices: Vec<LendDevice>,
    /// The other hosts.
    pub peers: Vec<LendPeer>,
}

/// A host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendMemory {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// In use, bytes, by `lend.used`.
    pub used_bytes: u64,
    /// Swap space in use, borrowed or not, bytes.
    pub swap_used_bytes: u64,
    /// Memory use above which it borrows, bytes.
    pub upper_bytes: u64,
    /// Memory use below which it returns memory, bytes.
    pub lower_bytes: u64,
    /// Share of the last 10 s in which some task waited for memory, per cent; null on a kernel without PSI.
    pub pressure_percent: Option<f64>,
}

/// A loan that this host has given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LentLoan {
    /// Its number, assigned by the borrower.
    pub loan: String,
    /// The borrower.
    pub borrower: String,
    /// Reserved memory, bytes.
    pub bytes: u64,
    /// Used memory in it, bytes.
    pub used_bytes: u64,
    /// `reserving`, `lent`, `recalled` or `releasing`.
    pub state: String,
    /// How well the borrower answers: a peer's `health`.
    pub health: String,
    /// Time until it ends unless renewed, milliseconds.
    pub lease_ms: u64,
}

/// A loan that this host holds or has requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct BorrowedLoan {
    /// Its number.
    pub loan: String,
    /// The lender.
    pub lender: String,
    /// Its device.
    pub device: u32,
    /// Bytes.
    pub bytes: u64,
    /// `asked`, `held` or `recalled`.
    pub state: String,
    /// How well the lender answers: a peer's `health`.
    pub health: String,
    /// Time until it ends unless renewed, milliseconds.
    pub lease_ms: u64,
}

/// A device that consists of loans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendDevice {
    /// Its number.
    pub device: u32,
    /// `gathering`, `attaching`, `attached` or `detaching`.
    pub state: String,
    /// Its path: a kernel device or a socket; empty before it is attached.
    pub path: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// Used bytes on it.
    pub used_bytes: u64,
    /// Whether an operator borrowed it: then it stays until an operator returns it.
    pub kept: bool,
    /// The worst `health` of the hosts that hold its copies.
    pub health: String,
    /// Slabs with two copies in reach that have every page: in the local file, or on hosts that are neither
    /// `unreachable` nor `refused`.
    pub slabs_mirrored: u32,
    /// Slabs with one such copy: the other one is missing, out of reach, or lacks pages (`behind_pages`).
    pub slabs_single: u32,
    /// Slabs without such a copy: their pages may come back with the hosts.
    pub slabs_unreachable: u32,
    /// Slabs without a copy: their pages are lost.
    pub slabs_lost: u32,
    /// Pages read from the second copy because the first failed.
    pub fail_overs: u64,
    /// The longest time of a batch of requests, microseconds.
    pub longest_stall_us: u64,
    /// Pages of which no copy could be read or written.
    pub errors: u64,
    /// Pages that wait now for a last copy whose lender does not answer.
    pub waiting_pages: u64,
    /// Pages that have waited for a last copy whose lender did not answer.
    pub waits: u64,
    /// Pages that were asked of the second copy too, because the first took longer than usual.
    pub hedged_pages: u64,
    /// Pages that one copy lacks now, because its holder missed their last write.
    pub behind_pages: u64,
    /// Pages that were copied again to a copy that had missed their last write.
    pub mended_pages: u64,
}

/// Another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendPeer {
    /// The DNS name in its certificate.
    pub name: String,
    /// Its address for messages.
    pub address: String,
    /// Its rack.
    pub rack: String,
    /// What it would lend, by its last report, bytes.
    pub spare_bytes: u64,
    /// How well it answers this host: `ok`, `slow`, `unreachable`, `refused`, or `unknown` if there was no
    /// request to it.
    pub health: String,
    /// The last problem, in plain words; empty if there is none.
    pub reason: String,
    /// Time since its health last changed, seconds.
    pub health_s: u64,
}

/// The size to borrow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendBorrow {
    /// Bytes; rounded to whole slabs.
    pub bytes: u64,
}
