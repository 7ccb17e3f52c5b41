//! What the target can be told.

use std::sync::{Arc, RwLock};

use spillway_wire::auth::Secret;
use spillway_wire::fabrics::NQN_BYTES_MAX;

use crate::error::Error;

/// Settings of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the names of its subsystems begin with. Linux tells subsystems apart by their names alone,
    /// so two targets that one host uses need different ones.
    pub nqn_base: String,
    /// I/O queues that a controller has at most.
    pub io_queues_max: u16,
    /// Entries of a queue at most.
    pub queue_entries_max: u16,
    /// Connections of a server at the same time, whoever makes them.
    pub connections_max: usize,
    /// How long a new connection may take until its queue is connected and authenticated.
    pub handshake_timeout_ms: u64,
    /// How long a host may take to receive anything.
    pub send_timeout_ms: u64,
    /// How long a host may take to send 64 KiB of the data that it owes, or all of it if that is less.
    pub data_timeout_ms: u64,
    /// What the target proves to know to hosts that ask for it. Another can take its place: hosts that authenticate
    /// later are shown that.
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

    /// Whether a target can be made with it.
    ///
    /// # Errors
    /// [`Error::Config`] says what is wrong.
    pub fn check(&self) -> Result<(), Error> {
        if !self.nqn_base.starts_with("nqn.") || self.blocks_nqn().len() > NQN_BYTES_MAX {
            return Err(Error::Config("the base of its names must begin with nqn. and be short"));
        }
        if self.io_queues_max == 0 || self.queue_entries_max < 2 || self.connections_max == 0 {
            return Err(Error::Config(
                "it needs an I/O queue, two entries and a connection at least",
            ));
        }
        Ok(())
    }
}
