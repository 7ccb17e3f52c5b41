//! Hosts that lend each other memory: the state machine of Y. Ge, Y.-C. Tian, Z.-G. Yu, W. Zhang, "Memory sharing for
//! handling memory overload on physical machines in cloud data centers", 2023, made safe for many hosts.
//!
//! [`Machine`] is the state machine of one host. It does no I/O and reads no clock: its driver passes in [`Event`]s
//! with the monotonic time, and executes the returned [`Action`]s. [`HealthWatch`] tracks how well the other hosts
//! answer; it makes no decisions.

#![forbid(unsafe_code)]

mod action;
mod device;
mod devices;
mod error;
mod event;
mod health;
mod ids;
mod lender;
mod lent;
mod loan;
mod loans;
mod machine;
mod message;
mod places;
mod random;
mod select;
mod settings;
mod view;

pub use action::{Action, Note};
pub use error::Error;
pub use event::{Event, Kept, LostPlace, Order, Peer, PlaceFailure, Reading};
pub use health::{Contact, Fault, Health, HealthChange, HealthWatch, Standing};
pub use ids::{CopyLocation, DeviceId, Epoch, HOST_BYTES_MAX, HostId, LoanId, PoolIdentity};
pub use machine::Machine;
pub use message::{
    ADDRESS_BYTES_MAX, Access, Body, LOAN_SLABS_MAX, MESSAGE_BYTES_MAX, MESSAGE_MS_MAX, MemBorAck,
    MemBorFin, MemBorRej, MemBorReq, MemLenFin, Message, Mode, NQN_BYTES_MAX, Reason,
};
pub use settings::{Backup, DEVICES_MAX, Roles, Settings, Shareable};
pub use view::{
    BorrowedState, BorrowedView, DeviceState, DeviceView, LentState, LentView, Role, View,
};
