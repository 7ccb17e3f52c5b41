//! NVMe over TCP, from the side of the host: pools as key-value namespaces of a target.
//!
//! ```text
//!  store       the [`Store`](crate::Store) trait over a session
//!  session     threads, pipes and the clock around an association      socket: TCP as pipes; tls: TLS
//!  association the queues of a target, how they come up, calls under way, retries; no I/O
//!    bringup, auth, phase, commands, call, doubt, pools: its parts
//!  queue       one connection: PDUs, commands and their data; no I/O
//! ```
//!
//! The association is what the simulator and the fuzzer run. What is promised to a caller, and what
//! makes it so:
//!
//! - A value that was acknowledged comes back or gives an error; another never comes: commands are
//!   sent again only where that is safe ([`call`]), keys whose last write failed are deleted before
//!   anything else (`doubt`), and pools are told apart from those of a target that was restarted
//!   empty (`pools`).
//! - A call ends within its time, whatever the target does ([`settings::Settings`]).
//! - A hostile target can withhold or invent answers, but not write outside of the room that it was
//!   given, nor make the session grow ([`queue`]).

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
