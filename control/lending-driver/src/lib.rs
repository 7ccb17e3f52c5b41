//! Lending: hosts that lend each other memory.
//!
//! A driver is the I/O around a state machine that does none, so the crate is called after the machine
//! (`control/lending`) that it drives. It feeds the machine with what happens and executes the actions that it returns:
//!
//! ```text
//!  messages     of peers over HTTP, and to them        control/peers
//!  registry     which hosts there are                  control/registry
//!  health       how well the other hosts answer        control/lending
//!  memory       read once a period                     Kernel
//!  lender       pools of borrowers in the own store    control/directory
//!  borrower     devices over loans                     core/fanout, Transport
//!    swap         disks, swap space, sockets           Kernel
//! ```
//!
//! It changes this host through [`Kernel`], and pages reach lenders through [`Transport`]; the daemon implements both.
//! It has its own threads and runtime: neither the HTTP interface nor any data plane waits for it.

#![forbid(unsafe_code)]

mod asks;
mod borrower;
mod device;
mod driver;
mod error;
mod forgets;
mod health;
mod kernel;
mod lender;
mod notes;
mod peers;
mod settings;
mod shared;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod transport;

pub use error::Error;
pub use kernel::{AttachedDevice, HelperState, Kernel, RemoteDevice};
pub use lender::free_kept;
pub use settings::{DeviceUse, Discovery, Settings, UsedBy};
pub use start::{Handle, Lending, LendingParts, Prepared, peer_connections_max};
pub use transport::Transport;
