//! The client registry: the daemon's clients, their limits, pools and block devices.
//!
//! The store knows clients by number. The [`ClientRegistry`] gives them names. Front ends use it to
//! identify peers ([`spillway_types::Access`]) and to find devices ([`spillway_block::Exports`]), and
//! operators change it. It writes the state that must survive the daemon's death to a memory file
//! ([`Journal`]).

#![forbid(unsafe_code)]

mod access;
mod arrival;
mod block;
mod blocks;
mod changes;
mod entry;
mod error;
mod journal;
mod loans;
mod manager;
mod pools;
mod program;
mod programs;
mod registry;
mod removal;
mod settings;
mod stream;
mod transfer;
mod views;
mod visits;

pub use error::Error;
pub use journal::Journal;
pub use loans::{Loan, LoanView};
pub use programs::is_program;
pub use registry::{ClientRegistry, check};
pub use settings::{
    BlockSettings, ClientChange, ClientSettings, FLOOR_PAGES_MAX, ManagerSettings, NAME_BYTES_MAX,
    Policy, Secret, Users, WEIGHTS, Who,
};
pub use spillway_wire::auth::SecretError;
pub use stream::STREAM_VERSION;
pub use transfer::Moved;
pub use views::{BlockView, ClientView, Origin, PoolView, ProgramSeries, Refusals};
