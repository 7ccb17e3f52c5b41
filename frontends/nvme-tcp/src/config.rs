//! The settings of a target.

use std::sync::{Arc, RwLock};

use spillway_wire::auth::Secret;
use spillway_wire::fabrics::NQN_BYTES_MAX;

use crate::error::Error;

/// Settings of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// The beginning of its subsystems' names. Linux distinguishes subsystems by their names alone, so two targets that
    /// one host uses need different ones.
    pub nqn_base: String,
    /// Most I/O queues of a controller.
    pub io_queues_max: u16,
    /// Most entries of a queue.
    pub queue_entries_max: u16,
    /// Most connections of a server at the same time, of all hosts together.
    pub connections_max: usize,
    /// How long a new connection may take until its queue is connected and authenticated.
    pub handshake_timeout_ms: u64,
    /// How long a host may receive nothing while bytes for it wait.
    pub send_timeout_ms: u64,
    /// How long a host may take for the next 64 KiB of the data that it owes, or for all of it if that is less.
    pub data_timeout_ms: u64,
    /// The secret that the target proves to know to hosts that ask for it. You can replace it: the new one counts for
    /// hosts that authenticate later.
    pub controller_secret: Arc<RwLock<Option<Secret>>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nqn_base: "nqn.2026-11.io.spillway".into(),
            io_queues_max: 16,
            queue_entries_max: 128,
            connections_max: 1024,
            handshake_timeout_ms: 10_000,
            send_timeout_ms: 30_000,
            data_timeout_ms: 30_000,
            controller_secret: Arc::default(),
        }
    }
}

impl Config {
    /// The name of the subsystem of a client's pools.
    pub fn pools_nqn(&self) -> String {
        format!("{}:pools", self.nqn_base)
    }

    /// The name of the subsystem of a client's block exports.
    pub fn blocks_nqn(&self) -> String {
        format!("{}:blocks", self.nqn_base)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] says what is wrong.
    pub fn check(&self) -> Result<(), Error> {
        if !self.nqn_base.starts_with("nqn.") || self.blocks_nqn().len() > NQN_BYTES_MAX {
            return Err(Error::Config(
                "the beginning of its names must start with `nqn.` and be short",
            ));
        }
        if self.io_queues_max == 0 || self.queue_entries_max < 2 || self.connections_max == 0 {
            return Err(Error::Config(
                "it needs at least one I/O queue, two queue entries and one connection",
            ));
        }
        Ok(())
    }
}
