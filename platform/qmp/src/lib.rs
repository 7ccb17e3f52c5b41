//! QEMU's monitor protocol (QMP): JSON lines over a Unix socket.
//!
//! [`Monitor`] is a thin, blocking client with the few commands that resizing a guest needs. It does not decide on
//! sizes. Every call has a deadline and every buffer a limit: the client trusts QEMU as little as the guest inside it.
//!
//! A monitor socket serves one client at a time. QEMU lets a second client connect but never greets it: that is
//! [`Error::Held`].

#![forbid(unsafe_code)]

mod commands;
mod error;
mod event;
mod line;
mod monitor;

use std::time::Duration;

pub use commands::{Backend, MemoryDevice, MemorySize, NewDevice, RunState};
pub use error::Error;
pub use event::{EVENTS_MAX, Event, Events};
pub use line::LINE_BYTES_MAX;
pub use monitor::Monitor;

/// Time to wait for a greeting. A monitor that sends none in this time serves another client.
pub const GREETING_WAIT: Duration = Duration::from_secs(2);
