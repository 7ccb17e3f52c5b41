//! QEMU's monitor protocol (QMP): JSON lines over a Unix socket.
//!
//! [`Monitor`] is a thin, blocking client with the few commands that resizing a guest needs. It does not know guests'
//! sizes or who decides on them. Every call has a deadline, every buffer a limit: QEMU is trusted as little as the
//! guest inside it.
//!
//! A monitor socket serves one client at a time. QEMU lets a second one connect and never greets it, which is
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

/// A monitor that sends no greeting for this long serves another client.
pub const GREETING_WAIT: Duration = Duration::from_secs(2);
