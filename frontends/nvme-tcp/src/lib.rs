//! NVMe over TCP: key-value namespaces for clients, block namespaces for kernels.
//!
//! [`Target`] and [`Connection`] do no I/O: bytes go in, bytes come out, and the time is an argument. [`Server`] is the
//! sockets and threads around them. Each file knows only those below it:
//!
//! ```text
//!  server --bytes--> connection --> connect (the first command), fabrics (properties, authentication)
//!                        |
//!                        v  a queue, with data that arrives after its command (transfer)
//!                      queue --> admin (identify), blocks, pools
//!                        |           |
//!                        v           v  what commands are answered from
//!                sink, source     target (store, exports), controllers, namespaces, quota
//! ```
//! Answers go the other way: a command writes its reply to the output, which the server sends. A long answer is a
//! source, from which the connection copies one part after another.
//!
//! There are three subsystems: discovery, a client's block exports, and a client's pools. Which client it is follows
//! from the host's name, or over TLS from the name in its certificate. docs/protocol.md describes the protocol.

#![forbid(unsafe_code)]

mod admin;
mod authentication;
mod blocks;
mod config;
mod connect;
mod connection;
mod context;
mod controller;
mod controllers;
mod error;
mod fabrics;
mod identify;
mod namespaces;
mod outcome;
mod output;
mod patience;
mod pools;
mod queue;
mod quota;
mod reply;
mod server;
mod sink;
mod source;
mod subsystem;
mod target;
mod traffic;
mod transfer;

pub use config::Config;
pub use connection::{Connection, PDU_BYTES_MAX};
pub use controller::Waker;
pub use error::Error;
pub use output::Output;
pub use server::Server;
pub use spillway_wire::auth::Secret;
pub use target::Target;
