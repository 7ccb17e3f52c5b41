//! What all connections of a server share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_store::Store;
use spillway_types::{Access, ClientId};

use crate::config::Config;
use crate::keyspace::Keyspaces;
use crate::places::Places;

/// What CLIENT LIST tells of a connection.
#[derive(Clone, Debug, Default)]
pub struct Described {
    /// Whose connection it is.
    pub client: Option<ClientId>,
    /// The peer's address, and the own one.
    pub addresses: (String, String),
    /// What the client calls the connection.
    pub name: Vec<u8>,
    /// Name and version of the client's library.
    pub library: (Vec<u8>, Vec<u8>),
    /// The user that it has authenticated as.
    pub user: String,
    /// The database that is selected.
    pub number: u32,
    /// The version of the protocol.
    pub version: u32,
    /// When it began, milliseconds since 1970.
    pub began_ms: u64,
}

/// The connections there are.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<BTreeMap<u64, Described>>);

impl Sessions {
    /// Locks them.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Described>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all connections count.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were accepted.
    pub connections: AtomicU64,
    /// Commands that were carried out.
    pub commands: AtomicU64,
}

/// What all connections share.
pub struct Shared {
    /// The databases of all clients.
    pub keyspaces: Keyspaces,
    /// Who may come in.
    pub access: Arc<dyn Access>,
    /// What the server was told.
    pub config: Config,
    /// Their places.
    pub places: Places,
    /// The connections there are.
    pub sessions: Sessions,
    /// Counters.
    pub counters: Counters,
    /// When it began.
    pub began: Instant,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Shared {
    /// Of a server that does not listen yet.
    pub fn new(store: Arc<Store>, access: Arc<dyn Access>, config: Config) -> Self {
        Self {
            keyspaces: Keyspaces::new(store, config.lifetime),
            access,
            places: Places::new(config.connections_max),
            config,
            sessions: Sessions::default(),
            counters: Counters::default(),
            began: Instant::now(),
        }
    }
}

/// What a server has done, and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections there are.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Commands that were carried out.
    pub commands: u64,
    /// Keys of all databases.
    pub keys: u64,
    /// Keys of those that expire.
    pub expiring_keys: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Keys that have expired.
    pub expired: u64,
}

impl Shared {
    /// What the server has done, and has.
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
