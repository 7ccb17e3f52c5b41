//! Virtual clock, network and faults for the state machines.
//!
//! [`run`] creates a world from a seed: two clients with three actors each, a network, and a target with its store. The
//! state machines of clients (`spillway_client::nvme_tcp::association`) and target (`spillway_nvme_tcp::Connection`),
//! and the store, are those of production; only sockets, threads and the clock are simulated. For 12 virtual seconds
//! faults occur: connections are cut, bytes to the target arrive seconds after the client has reconnected, the network
//! goes dark, and the target is stopped, or ended and restarted with its store or with an empty one. Then the faults
//! end, and everything must be answered.
//!
//! Invariants, checked against [`model`]:
//!
//! - An acknowledged value is found, with its bytes, until it is overwritten or deleted. After a write that ended in an
//!   error, no value is found under its key.
//! - No reader gets an older version than one that was acknowledged or read before it began: a retried put does not
//!   undo a later one.
//! - When the store was lost, the pool is lost: every later answer reports it, and none has another pool's bytes.
//! - Every operation ends in time.
//!
//! Each of these rules is needed; without it, some of the first 300 seeds fail. The target ends a host's old
//! association before it answers the Connect of the new one. The client deletes keys whose last write failed. It
//! compares the identities of pools when it reconnects. It does not retry an exclusive get.
//!
//! A seed always gives the same run. To repeat one: `SPILLWAY_SIM_SEED=N cargo test -p spillway-sim`; to run more:
//! `SPILLWAY_SIM_SEEDS=100000 cargo test --release -p spillway-sim`.

#![forbid(unsafe_code)]

pub mod client;
pub mod inputs;
pub mod lending;
pub mod model;
pub mod network;
pub mod random;
pub mod target;
mod world;

pub use world::{Report, run};
