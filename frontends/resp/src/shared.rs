//! The state that all connections of a server share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_serving::{CommandKind, Complaints, Latencies};
use spillway_store::Store;
use spillway_types::{Access, ClientId};

use crate::config::Config;
use crate::keyspace::Keyspaces;
use crate::places::Places;

/// The description of a connection, for CLIENT LIST.
#[derive(Clone, Debug, Default)]
pub struct Described {
    /// The client that the connection belongs to. `None` if it is unauthenticated.
    pub client: Option<ClientId>,
    /// The address of the peer, and that of the server.
    pub addresses: (String, String),
    /// The name that the client gave to the connection.
    pub name: Vec<u8>,
    /// Name and version of the client's library.
    pub library: (Vec<u8>, Vec<u8>),
    /// The user as whom the connection is authenticated.
    pub user: String,
    /// The number of the selected database.
    pub number: u32,
    /// The version of the protocol.
    pub version: u32,
    /// The time at which the connection began, milliseconds since 1970.
    pub began_ms: u64,
}

/// The descriptions of all connections, by number.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<BTreeMap<u64, Described>>);

impl Sessions {
    /// Locks the descriptions.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Described>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of all connections.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were accepted.
    pub connections: AtomicU64,
    /// Commands that were carried out.
    pub commands: AtomicU64,
}

/// The kinds of commands.
const COMMANDS: &[CommandKind] =
    &[CommandKind::Get, CommandKind::Put, CommandKind::Remove, CommandKind::Other];

/// The state that all connections share.
pub struct Shared {
    /// The databases of all clients.
    pub keyspaces: Keyspaces,
    /// Decides which peers are admitted.
    pub access: Arc<dyn Access>,
    /// The settings of the server.
    pub config: Config,
    /// The slots of the connections.
    pub places: Places,
    /// The descriptions of the connections.
    pub sessions: Sessions,
    /// Counters.
    pub counters: Counters,
    /// The latencies of commands.
    pub latencies: Arc<Latencies>,
    /// Limits the log lines that peers cause.
    pub complaints: Complaints,
    /// The time at which the server began.
    pub began: Instant,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Shared {
    /// The state of a server without connections.
    pub fn new(store: Arc<Store>, access: Arc<dyn Access>, config: Config) -> Self {
        Self {
            keyspaces: Keyspaces::new(store, Arc::clone(&access), config.lifetime),
            access,
            places: Places::new(config.connections_max),
            config,
            sessions: Sessions::default(),
            counters: Counters::default(),
            latencies: Arc::new(Latencies::new(COMMANDS)),
            complaints: Complaints::new("RESP"),
            began: Instant::now(),
        }
    }
}

/// The statistics of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Open connections.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Commands that were carried out.
    pub commands: u64,
    /// Keys of all databases.
    pub keys: u64,
    /// Keys that expire, of all databases.
    pub expiring_keys: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not find their key.
    pub misses: u64,
    /// Keys that have expired.
    pub expired: u64,
}

impl Shared {
    /// The statistics of the server.
    pub fn statistics(&self) -> Statistics {
        let (keys, expiring_keys) = self.keyspaces.keys();
        let mut statistics = Statistics {
            connections: self.sessions.lock().len() as u64,
            accepted: self.counters.connections.load(Ordering::Relaxed),
            commands: self.counters.commands.load(Ordering::Relaxed),
            keys,
            expiring_keys,
            ..Statistics::default()
        };
        for database in self.keyspaces.open() {
            statistics.hits += database.counters.hits.load(Ordering::Relaxed);
            statistics.misses += database.counters.misses.load(Ordering::Relaxed);
            statistics.expired += database.counters.expired.load(Ordering::Relaxed);
        }
        statistics
    }
}
