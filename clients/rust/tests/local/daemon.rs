//! A ring's server in this process, for tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use spillway_client::{Ring, RingOptions};
use spillway_ring::{Config, Server};
use spillway_store::{ClientConfig, ClientId, Store};
use spillway_types::{Access, Admitted, Denied, Identity, Limits};

/// Limits that no test reaches by accident.
pub const LIMITS: Limits =
    Limits { connections_max: 64, operations_max: 4096, bytes_max: 512 << 20 };

/// Admits every connection: all as one client, or each as its own client.
pub struct Door {
    store: Arc<Store>,
    one: Option<ClientId>,
    limits: Limits,
    inside: AtomicU32,
    turned_away: AtomicU32,
    late: AtomicU32,
}

impl Access for Door {
    fn admit(&self, _: Identity<'_>) -> Result<Admitted, Denied> {
        if self.inside.load(Ordering::SeqCst) >= self.limits.connections_max {
            self.turned_away.fetch_add(1, Ordering::SeqCst);
            return Err(Denied::Connections);
        }
        let new = || self.store.add_client(ClientConfig::default()).map_err(|_| Denied::Unknown);
        let client = self.one.map_or_else(new, Ok)?;
        self.inside.fetch_add(1, Ordering::SeqCst);
        Ok(Admitted { client, limits: self.limits })
    }

    fn leave(&self, client: ClientId) {
        // A store has 4,095 places, which a fast machine uses up in seconds of new connections.
        if self.one.is_none() {
            self.store.remove_client(client).expect("a client that was added");
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn handshake_late(&self) {
        self.late.fetch_add(1, Ordering::SeqCst);
    }

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

/// A server and its store.
pub struct Daemon {
    pub server: Option<Server>,
    pub door: Arc<Door>,
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Daemon {
    /// A daemon whose connections are all of one client.
    pub fn for_one(limits: Limits) -> Self {
        Self::start(limits, true, Config::default())
    }

    /// The same, with settings of the server.
    pub fn with(limits: Limits, config: Config) -> Self {
        Self::start(limits, true, config)
    }

    /// A daemon whose connections are each of their own client.
    pub fn for_many(limits: Limits) -> Self {
        Self::start(limits, false, Config::default())
    }

    fn start(limits: Limits, one: bool, config: Config) -> Self {
        let store = Store::open(spillway_store::Config::embedded(256 << 20)).expect("a store");
        let store = Arc::new(store);
        let client = || store.add_client(ClientConfig::default()).expect("a client");
        let one = one.then(client);
        let (inside, turned_away, late) = Default::default();
        let door = Door { store: store.clone(), one, limits, inside, turned_away, late };
        let door = Arc::new(door);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring.sock");
        let listener = Server::bind(&path).expect("a socket");
        let server = Server::start(listener, store, door.clone(), config);
        Self { server: Some(server.expect("a server")), door, path, _folder: folder }
    }

    /// Stops the server, and starts another one over the same store.
    pub fn restart(&mut self, config: Config) {
        drop(self.server.take());
        let _ = std::fs::remove_file(&self.path);
        let listener = Server::bind(&self.path).expect("a socket");
        let server = Server::start(listener, self.door.store.clone(), self.door.clone(), config);
        self.server = Some(server.expect("a server"));
    }

    /// The number of admitted connections that have not ended.
    pub fn inside(&self) -> u32 {
        self.door.inside.load(Ordering::SeqCst)
    }

    /// The number of refused connections.
    pub fn turned_away(&self) -> u32 {
        self.door.turned_away.load(Ordering::SeqCst)
    }

    /// The number of connections that sent no hello in time.
    pub fn late(&self) -> u32 {
        self.door.late.load(Ordering::SeqCst)
    }

    /// A client with at most `connections_max` connections.
    pub fn connect(&self, connections_max: u32) -> Ring {
        let options = RingOptions { connections_max, ..RingOptions::default() };
        Ring::connect_with(&self.path, options).expect("a ring")
    }
}
