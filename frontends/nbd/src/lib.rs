//! Network Block Device: fixed newstyle, for kernels and tools.
//!
//! [`Server`] listens and gives each connection a thread with two fixed buffers: one read takes in as
//! many requests as have arrived, one write sends all their replies. [`Negotiation`] and
//! [`Transmission`] are the protocol without I/O: they take bytes and leave bytes.
//!
//! A connection executes its requests in order of arrival. Data longer than a buffer streams
//! through it. So a connection never holds more than its buffers, and a slow or stuck peer delays
//! only itself.

#![forbid(unsafe_code)]

mod admission;
mod attach;
mod batch;
mod buffer;
mod config;
mod connection;
mod error;
mod negotiation;
mod server;
mod session;
mod socket;
mod transmission;

pub use attach::{AttachSettings, Attached, Itself, Kernel, attach, attach_by};
pub use buffer::Output;
pub use config::{Config, TlsMode};
pub use error::Error;
pub use negotiation::{Negotiation, Peer, Step, TlsState};
pub use server::Server;
pub use session::Session;
pub use socket::Listener;
pub use transmission::{Progress, REQUEST_BYTES_MAX, Transmission};
