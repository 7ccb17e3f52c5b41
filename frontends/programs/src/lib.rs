//! Where paged programs of the host register, report what they do, and hear what they may hold.
//!
//! One thread serves all of them: a program says a few bytes each second. The socket is open to everybody; who is
//! counted is up to [`spillway_types::Programs`], by the credentials that the kernel vouches for. A program that breaks the protocol,
//! says too much or does not read its answers is hung up on, which ends nothing but its registration.

#![forbid(unsafe_code)]

mod connection;
mod server;

pub use server::{Config, Server};
