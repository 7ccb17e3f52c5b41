//! The host side of NVMe over TCP: pools as key-value namespaces of a target.
//!
//! ```text
//!  store       the [`Store`](crate::Store) trait over a session
//!  session     threads, pipes and the clock around an association      socket: TCP as pipes; tls: TLS
//!  association the queues of a target, connecting, calls in flight, retries; no I/O
//!    bringup, auth, phase, commands, call, doubt, pools: its parts
//!  queue       one connection: PDUs, commands and their data; no I/O
//! ```
//!
//! The simulator and the fuzzer run the association. The guarantees to a caller, and how they are kept:
//!
//! - A get returns the acknowledged value or an error, never another value. Commands are retried only where that is
//!   safe ([`call`]). Keys whose last write failed are deleted first (`doubt`). Pools are distinguished from those of a
//!   target that was restarted empty (`pools`).
//! - A call ends in time, whatever the target does ([`settings::Settings`]).
//! - A hostile target can withhold or invent answers, but it can't write outside the buffers that it was given, nor
//!   make the session's memory grow ([`queue`]).

pub mod association;
mod auth;
mod bringup;
pub mod call;
mod commands;
pub mod dial;
mod doubt;
mod phase;
pub mod pipe;
mod pools;
pub mod queue;
pub mod session;
pub mod settings;
pub mod socket;
pub mod store;
pub mod tls;
