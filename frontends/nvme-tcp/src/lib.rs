//! NVMe over TCP: key-value namespaces for clients, block namespaces for kernels.
//!
//! [`Target`] and [`Connection`] are state machines: bytes in, bytes out, the time an argument.
//! [`Server`] puts sockets and threads around them.
//!
//! ```text
//!  server ---bytes---> connection --PDUs--> transfer (data that comes after its command) --> sink
//!                          |
//!                          v commands
//!            fabrics, admin, blocks, pools --reply--> output ---bytes---> server
//!                                          --source (long answers)--^
//! ```
//! Three subsystems: discovery, the block exports of a client, the pools of a client. Which client it is
//! follows from the host's name. docs/protocol.md says what is spoken.

#![forbid(unsafe_code)]

mod admin;
mod authentication;
mod blocks;
mod config;
mod connection;
mod controller;
mod error;
mod fabrics;
mod identify;
mod namespaces;
mod output;
mod patience;
mod pools;
mod queue;
mod quota;
mod reply;
mod server;
mod sink;
mod source;
mod target;
mod transfer;

pub use config::Config;
pub use connection::{Connection, PDU_BYTES_MAX};
pub use controller::Waker;
pub use error::Error;
pub use output::Output;
pub use server::Server;
pub use spillway_wire::auth::Secret;
pub use target::Target;
