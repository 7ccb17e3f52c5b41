//! Lending: hosts that lend each other memory.
//!
//! [`driver`] feeds the state machine (`control/lending`) with what happens and carries out what it wants:
//!
//! ```text
//!  messages     of peers over HTTP, and to them        control/peers
//!  registry     which hosts there are                  control/registry
//!  health       how well the other hosts answer         control/lending
//!  memory       /proc/meminfo, once a period           platform/host
//!  lender       pools of borrowers in the own store    control/directory
//!  borrower     devices over loans                     core/fanout, clients/lender, frontends/nbd
//!    helper       what needs an administrator's rights: a process of its own
//! ```
//!
//! It has threads and a runtime of its own: neither the HTTP interface nor any data plane waits for it.

#[path = "../../../../control/lending-driver/src/asks.rs"]
mod asks;
#[path = "../../../../control/lending-driver/src/borrower.rs"]
mod borrower;
#[path = "../../../../control/lending-driver/src/device.rs"]
mod device;
#[path = "../../../../control/lending-driver/src/driver.rs"]
mod driver;
#[path = "../../../../control/lending-driver/src/health.rs"]
mod health;
pub mod helper;
#[path = "../../../../control/lending-driver/src/lender.rs"]
mod lender;
#[path = "../../../../control/lending-driver/src/notes.rs"]
mod notes;
#[path = "../../../../control/lending-driver/src/peers.rs"]
mod peers;
mod socket;
#[path = "../../../../control/lending-driver/src/start.rs"]
mod start;
#[path = "../../../../control/lending-driver/src/status.rs"]
mod status;

use spillway_directory::ClientRegistry;

pub use start::{Lending, Prepared};

/// Frees what the store kept of loans, where nothing is lent any more.
pub fn free_kept(client_registry: &ClientRegistry) {
    for view in client_registry.loans() {
        let (borrower, number) = (view.loan.borrower, view.loan.number);
        if let Err(error) = client_registry.destroy_loan(&borrower, number) {
            tracing::error!(borrower, "can't free what was lent: {error}");
        }
    }
}
