//! The server with which paged programs of the host register, report their activity, and get their
//! targets.
//!
//! One thread serves all of them, because a program sends only a few bytes each second. Every user can connect;
//! [`spillway_types::Programs`] decides by the kernel's credentials which programs may register. The server disconnects
//! a program that violates the protocol, sends too many messages or does not read its answers. The program itself
//! continues.

#![forbid(unsafe_code)]

mod connection;
mod server;

pub use server::{Config, Server};
