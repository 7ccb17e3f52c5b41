//! The HTTP interface of the daemon, its types and its OpenAPI document.
//!
//! [`types`] has the types of requests and responses. The feature `server` adds the service.
//! docs/openapi.json is generated from the same definitions.

#![forbid(unsafe_code)]

pub mod types;
mod types_disk;
mod types_lend;
mod types_problem;
mod types_vm;

#[cfg(feature = "server")]
mod asker;
#[cfg(feature = "server")]
mod clients;
#[cfg(feature = "server")]
mod daemon;
#[cfg(feature = "server")]
mod disks;
#[cfg(feature = "server")]
mod history;
#[cfg(feature = "server")]
mod lending;
#[cfg(feature = "server")]
mod openapi;
#[cfg(feature = "server")]
mod parts;
#[cfg(feature = "server")]
mod policy;
#[cfg(feature = "server")]
mod problem;
#[cfg(feature = "server")]
mod reload;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod service;
#[cfg(feature = "server")]
mod store;
#[cfg(feature = "server")]
mod transfer;
#[cfg(feature = "server")]
mod vms;

#[cfg(feature = "server")]
pub use asker::{Asker, Tokens};
#[cfg(feature = "server")]
pub use parts::{Daemon, Disks, Guests, LendOrder, Lending, ReloadOutcome};
#[cfg(feature = "server")]
pub use policy::{
    INTERVALS_MS, change as policy_change, configure as configure_policy,
    described as described_policy,
};
#[cfg(feature = "server")]
pub use server::{ServerLimits, serve, serve_tls};
#[cfg(feature = "server")]
pub use service::{document, router};
