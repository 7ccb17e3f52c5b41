//! Who the daemon's clients are, what they may have, and which pools and block devices are theirs.
//!
//! The store knows clients by number. The [`ClientRegistry`] gives them names: it is what frontends ask
//! who connects ([`spillway_types::Access`]) and which devices there are
//! ([`spillway_block::Exports`]), and what the operator changes. What it must not forget when the
//! daemon is killed, it writes into a memory file that outlives the process ([`Journal`]).

#![forbid(unsafe_code)]

mod access;
mod blocks;

mod entry;
mod error;
mod journal;
mod loans;
mod manager;
mod pools;
mod programs;
mod registry;
mod settings;
mod stream;
mod transfer;
mod views;

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
pub use views::{BlockView, ClientView, Origin, PoolView, Refusals};
