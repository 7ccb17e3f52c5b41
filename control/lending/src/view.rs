//! The operators' view of the machine.

use serde::{Deserialize, Serialize};

use crate::{CopyLocation, DeviceId, HostId, LoanId};

/// A host's present role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Neither; it may wait for the answer to a request.
    Neutral,
    /// It holds loans of other hosts.
    Borrower,
    /// It has lent.
    Lender,
    /// Both, if the settings allow it.
    Both,
}

/// The machine's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// This host.
    pub host: HostId,
    /// Its role.
    pub role: Role,
    /// Whether it waits for answers to requests.
    pub is_waiting: bool,
    /// Whether the operator drains it.
    pub is_draining: bool,
    /// What it could still lend, bytes, for the registry.
    pub spare_bytes: u64,
    /// Size of the loans that it has given, bytes.
    pub lent_bytes: u64,
    /// Size of the loans that it holds, bytes.
    pub borrowed_bytes: u64,
    /// The loans that it has given.
    pub lent: Vec<LentView>,
    /// The loans that it holds.
    pub borrowed: Vec<BorrowedView>,
    /// Its devices.
    pub devices: Vec<DeviceView>,
}

/// A loan that this host has given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentView {
    /// The loan, with its borrower.
    pub loan: LoanId,
    /// Its size, bytes.
    pub bytes: u64,
    /// Its state.
    pub state: LentState,
    /// Until the lease ends, ms.
    pub lease_ms: u64,
}

/// State of a loan on its lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LentState {
    /// Memory is being reserved.
    Reserving,
    /// Granted.
    Lent,
    /// Recalled; the borrower moves its pages.
    Recalled,
    /// Its memory is being freed.
    Releasing,
}

/// A loan that this host holds or has requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BorrowedView {
    /// The loan.
    pub loan: LoanId,
    /// The lender.
    pub lender: HostId,
    /// Its device.
    pub device: DeviceId,
    /// Bytes.
    pub bytes: u64,
    /// How it stands.
    pub state: BorrowedState,
    /// Until the lease ends, ms; 0 while it is asked for.
    pub lease_ms: u64,
}

/// State of a loan on its borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BorrowedState {
    /// Requested.
    Asked,
    /// Granted.
    Held,
    /// Recalled: its slabs move elsewhere.
    Recalled,
}

/// A swap device of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceView {
    /// Its id.
    pub device: DeviceId,
    /// How it stands.
    pub state: DeviceState,
    /// Whether the operator borrowed it: then it stays until an order.
    pub is_kept: bool,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Where the copies of each slab lie.
    pub slabs: Vec<[Option<CopyLocation>; 2]>,
}

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// Lenders are asked for its slabs.
    Gathering,
    /// It is being created.
    Attaching,
    /// In use.
    Attached,
    /// It is being taken out of use.
    Detaching,
}
