//! The server with which paged programs of the host register, report their activity, and get their
//! targets.
//!
//! One thread serves all of them, because a program sends only a few bytes each second. Every user can connect;
//! [`spillway_types::Programs`] decides which programs count, by the kernel's credentials. A program that violates the
//! protocol, sends too much or does not read its answers is disconnected, which ends only its registration.

#![forbid(unsafe_code)]

mod connection;
mod server;

pub use server::{Config, Server};
