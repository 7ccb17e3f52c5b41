//! Helpers for tests of several crates.
//!
//! Only dev-dependencies may name this crate (`cargo xtask layering`). It depends only on core/types and platform/tls,
//! so that the tests of every other crate can use it. The helpers panic on errors, which fails the test.

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
