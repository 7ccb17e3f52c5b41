//! RESP2 and RESP3: the store as a key-value server for clients of Redis and Valkey.
//!
//! [`Server`] listens; a few threads serve all connections. [`Connection`] is the protocol without I/O and clocks:
//! bytes and times go in, replies come out. The store holds all data of a key, as a record of its value, its
//! name and its expiry. There is no other state (docs/adr/0028-keys-of-the-resp-front-end.md).

#![forbid(unsafe_code)]

mod arguments;
mod chunks;
mod commands;
mod config;
mod connection;
mod database;
mod error;
mod glob;
mod input;
mod keyspace;
mod natural;
mod number;
mod opening;
mod output;
mod places;
mod random;
mod record;
mod server;
mod session;
mod shared;
mod sweep;
mod transport;
mod trouble;
mod walk;
mod worker;

pub use config::Config;
pub use connection::Connection;
pub use error::Error;
pub use keyspace::Keyspaces;
pub use server::{Listener, Server};
pub use session::{Origin, Session};
pub use shared::{Described, Shared, Statistics};
