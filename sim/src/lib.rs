//! Virtual clock, network and faults for the state machines.
//!
//! [`run`] makes a world out of a seed: two clients of three actors each, a network, and a target with
//! its store. The clients' and the target's state machines are those of production
//! (`spillway_client::nvme_tcp::association`, `spillway_nvme_tcp::Connection`), the store too; only
//! sockets, threads and the clock are simulated. For 12 virtual seconds connections are cut, bytes on
//! their way to the target arrive seconds after the client has connected again, the network goes dark,
//! the target is stopped, or ended and started again with its store or with an empty one. Then all is
//! calm, and everything must be answered.
//!
//! What is checked, against [`model`]:
//!
//! - A value that was acknowledged is found, with its bytes, until it is overwritten or deleted; after
//!   a write that ended in an error nothing is found under its key.
//! - No reader sees an older version than one that was acknowledged or seen before it began: a put that
//!   is sent again does not undo a later one.
//! - When the store was lost, the pool is lost: every later answer says so, and none has another
//!   pool's bytes.
//! - Every operation ends within its time.
//!
//! Each of these is needed, and without it some of the first 300 seeds fail: the target ends a host's old
//! association before it answers the Connect of the new one; the client deletes keys whose last write
//! failed; it compares the identities of pools when it comes back; an exclusive get is not sent again.
//!
//! The same seed does the same. To see one: `SPILLWAY_SIM_SEED=N cargo test -p spillway-sim`; for more
//! of them: `SPILLWAY_SIM_SEEDS=100000 cargo test --release -p spillway-sim`.

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
