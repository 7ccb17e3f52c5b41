//! What tests of several crates need, written once.
//!
//! Only dev-dependencies may name this crate (`cargo xtask layering`). It knows core/types and platform/tls and nothing
//! above, so that the tests of every other crate can use it. Everything panics where it can't go on: a failure is the
//! test's.

#![forbid(unsafe_code)]

pub mod access;
#[cfg(feature = "certificates")]
pub mod certificates;
#[cfg(feature = "commands")]
pub mod commands;
pub mod documents;
pub mod pages;
pub mod random;
pub mod sockets;
pub mod wait;
