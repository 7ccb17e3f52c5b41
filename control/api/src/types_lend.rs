//! What goes over the wire about lending.

use serde::{Deserialize, Serialize};

/// What this host lends and borrows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendStatus {
    /// This host: the DNS name in its certificate.
    pub host: String,
    /// `neutral`, `borrower`, `lender` or `both`; `off` where nothing is lent or borrowed.
    pub role: String,
    /// Whether it waits for lenders to answer.
    pub waiting: bool,
    /// Whether the operator drains it.
    pub draining: bool,
    /// Whether nothing is done to this host, as `lend.dry_run` has it.
    pub dry_run: bool,
    /// How it borrows: `fan-out` or `direct`.
    pub mode: String,
    /// Where each page lies besides: `none`, `mirror` or `file`.
    pub backup: String,
    /// What it would lend now, bytes.
    pub spare_bytes: u64,
    /// What it has lent, in full, bytes.
    pub lent_bytes: u64,
    /// What it holds of others, bytes.
    pub borrowed_bytes: u64,
    /// Its memory at the last look.
    pub memory: LendMemory,
    /// The loans that it has given.
    pub lent: Vec<LentLoan>,
    /// The loans that it holds or asks for.
    pub borrowed: Vec<BorrowedLoan>,
    /// What it has made of them.
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
    /// Above so much in use it borrows, bytes.
    pub upper_bytes: u64,
    /// Below so much it gives back, bytes.
    pub lower_bytes: u64,
    /// Share of the last 10 s in which some task waited for memory, per cent; null on a kernel without PSI.
    pub pressure_percent: Option<f64>,
}

/// A loan that this host has given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LentLoan {
    /// Its number, which the borrower gave it.
    pub loan: String,
    /// Who borrows.
    pub borrower: String,
    /// What is set aside, bytes.
    pub bytes: u64,
    /// What lies in it, bytes.
    pub used_bytes: u64,
    /// `reserving`, `lent`, `recalled` or `releasing`.
    pub state: String,
    /// How well the borrower answers: a peer's `health`.
    pub health: String,
    /// Until it ends without being renewed, milliseconds.
    pub lease_ms: u64,
}

/// A loan that this host holds, or asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct BorrowedLoan {
    /// Its number.
    pub loan: String,
    /// Who lends.
    pub lender: String,
    /// The device that it is for.
    pub device: u32,
    /// Bytes.
    pub bytes: u64,
    /// `asked`, `held` or `recalled`.
    pub state: String,
    /// How well the lender answers: a peer's `health`.
    pub health: String,
    /// Until it ends without being renewed, milliseconds.
    pub lease_ms: u64,
}

/// A device that is made of loans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendDevice {
    /// Its number.
    pub device: u32,
    /// `gathering`, `attaching`, `attached` or `detaching`.
    pub state: String,
    /// Where it is: a device of the kernel, or a socket; empty until then.
    pub path: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// What lies on it, bytes.
    pub used_bytes: u64,
    /// Whether an operator borrowed it, so that it stays until it is returned.
    pub kept: bool,
    /// The worst `health` of the hosts that hold its copies.
    pub health: String,
    /// Slabs with two copies that are in reach: in the local file, or on hosts that are neither `unreachable` nor
    /// `refused`.
    pub slabs_mirrored: u32,
    /// Slabs with one copy in reach.
    pub slabs_single: u32,
    /// Slabs with copies, of which none is in reach: what is on them may come back with its hosts.
    pub slabs_unreachable: u32,
    /// Slabs without a copy: what was on them is lost.
    pub slabs_lost: u32,
    /// Pages that the second copy gave, since the first did not.
    pub fail_overs: u64,
    /// The longest time that a group of requests took, microseconds.
    pub longest_stall_us: u64,
    /// Pages of which no copy could be read or written.
    pub errors: u64,
    /// Pages that wait now for a last copy whose lender does not answer.
    pub waiting_pages: u64,
    /// Pages that have waited for a last copy whose lender did not answer.
    pub waits: u64,
}

/// Another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendPeer {
    /// The DNS name in its certificate.
    pub name: String,
    /// Where it takes messages.
    pub address: String,
    /// Its rack.
    pub rack: String,
    /// What it would lend, as it said last, bytes.
    pub spare_bytes: u64,
    /// How well it answers this host: `ok`, `slow`, `unreachable`, `refused`, or `unknown` where nobody asked it.
    pub health: String,
    /// The last thing that went wrong, in plain words; empty where nothing is wrong.
    pub reason: String,
    /// For how long it has had this health, seconds.
    pub health_s: u64,
}

/// How much is to be borrowed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LendBorrow {
    /// Bytes; whole slabs are borrowed.
    pub bytes: u64,
}
