//! The HTTP interface of the daemon, its types and its OpenAPI document.
//!
//! [`types`] is what goes over the wire; with the feature `server` there is also the service that
//! answers. docs/openapi.json is made from the same definitions.

#![forbid(unsafe_code)]

pub mod types;
mod types_lend;
mod types_vm;

#[cfg(feature = "server")]
mod asker;
#[cfg(feature = "server")]
mod clients;
#[cfg(feature = "server")]
mod daemon;
#[cfg(feature = "server")]
mod history;
#[cfg(feature = "server")]
mod lending;
#[cfg(feature = "server")]
mod openapi;
#[cfg(feature = "server")]
mod policy;
#[cfg(feature = "server")]
mod problem;
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
pub use lending::{LendOrder, Lending};
#[cfg(feature = "server")]
pub use policy::{INTERVALS_MS, configure as configure_policy};
#[cfg(feature = "server")]
pub use server::{ServerLimits, serve};
#[cfg(feature = "server")]
pub use service::{Daemon, document, router};
#[cfg(feature = "server")]
pub use vms::Guests;
