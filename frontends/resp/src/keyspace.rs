//! The databases of each client, and their pools.
//!
//! A persistent database is a private pool with a mark: a value with the number of the database. The mark moves with
//! the client to another daemon. An ephemeral database is a shared pool that only its client may join, because a get
//! removes the value from a private ephemeral pool.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_serving::PoolLog;
use spillway_store::{ClientId, Key, Lifetime, PoolId, PoolInfo, PoolSpec, Put, Sharing, Store};
use spillway_types::Access;

use crate::database::Database;
use crate::opening;
use crate::random::random;
use crate::record::MARK_OBJECT;
use crate::trouble::Trouble;

/// The first bytes of a mark. The number of the database and the seed follow.
const MARK: [u8; 16] = *b"spillway resp 1\0";
const MARK_BYTES: usize = 32;
/// The high half of the UUID of an ephemeral database. The low half is the client and the number.
const UUID_HIGH: u64 = 0x5350_494c_4c52_4553;
/// Most databases of a client.
pub const DATABASES_MAX: u32 = 16;

/// The databases of one client.
#[derive(Debug)]
pub struct Keyspace {
    store: Arc<Store>,
    client: ClientId,
    lifetime: Lifetime,
    pool_log: Arc<PoolLog>,
    databases: Mutex<Vec<Option<Arc<Database>>>>,
}

impl Keyspace {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<Database>>>> {
        self.databases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A database. The first call finds or makes its pool.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn database(&self, number: u32) -> Result<Arc<Database>, Trouble> {
        self.database_in(&mut self.lock(), number)
    }

    fn database_in(
        &self,
        databases: &mut [Option<Arc<Database>>],
        number: u32,
    ) -> Result<Arc<Database>, Trouble> {
        let place = &mut databases[number as usize];
        if let Some(database) = place.as_ref().filter(|open| self.store.has_pool(open.pool())) {
            return Ok(Arc::clone(database));
        }
        let pool = match self.find(number)? {
            Some(pool) => pool,
            None => self.make(number)?,
        };
        let (store, kind) = (Arc::clone(&self.store), (number, self.lifetime));
        let database = Arc::new(Database::new(store, self.client, kind, pool));
        opening::open(&database)?;
        Ok(Arc::clone(place.insert(database)))
    }

    /// The databases that are open.
    pub fn open(&self) -> Vec<Arc<Database>> {
        self.lock().iter().flatten().cloned().collect()
    }

    /// Opens the databases of an earlier daemon.
    fn reopen(&self) -> Result<(), Trouble> {
        for number in 0..DATABASES_MAX {
            if self.find(number)?.is_some() {
                self.database(number)?;
            }
        }
        Ok(())
    }

    /// Removes all keys of a database.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn flush(&self, number: u32) -> Result<(), Trouble> {
        // The lock is held until the new pool has replaced the old one. Otherwise another thread could find no pool,
        // and open a second database.
        let mut databases = self.lock();
        let database = self.database_in(&mut databases, number)?;
        database.flush(|pool| {
            let gone = match self.lifetime {
                Lifetime::Persistent => self.store.destroy_pool(pool),
                Lifetime::Ephemeral => self.store.leave_pool(pool),
            };
            match gone {
                Ok(()) | Err(spillway_store::Error::NoPool) => self.make(number),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Removes all keys of all databases.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn flush_all(&self) -> Result<(), Trouble> {
        for number in 0..DATABASES_MAX {
            if self.find(number)?.is_some() {
                self.flush(number)?;
            }
        }
        Ok(())
    }

    /// The pool of a database, if there is one.
    fn find(&self, number: u32) -> Result<Option<(PoolId, u64)>, Trouble> {
        let pools = self.store.pools(self.client)?;
        match self.lifetime {
            Lifetime::Persistent => Ok(pools
                .iter()
                .filter(|pool| pool.spec == PoolSpec::PERSISTENT && pool.reserved_pages == 0)
                .find_map(|pool| self.mark(pool, number))),
            Lifetime::Ephemeral => {
                let sharing = Sharing::Shared { uuid: self.uuid(number) };
                let found = pools.iter().find(|pool| pool.spec.sharing == sharing);
                Ok(found.map(|pool| (pool.id, random())))
            }
        }
    }

    /// The pool and its seed, if its mark names this database.
    fn mark(&self, pool: &PoolInfo, number: u32) -> Option<(PoolId, u64)> {
        let value = self.store.inspect(pool.id, Key::new(MARK_OBJECT, 0)).ok()?;
        let mark: &[u8; MARK_BYTES] = value.tail().try_into().ok()?;
        let (head, rest) = mark.split_at(MARK.len());
        let (own, seed) = rest.split_at(8);
        let is_it = head == MARK && own == u64::from(number).to_le_bytes();
        is_it.then(|| (pool.id, u64::from_le_bytes(seed.try_into().unwrap_or_default())))
    }

    fn uuid(&self, number: u32) -> u128 {
        let low = self.client.0 << 4 | u64::from(number);
        u128::from(UUID_HIGH) << 64 | u128::from(low)
    }

    fn make(&self, number: u32) -> Result<(PoolId, u64), Trouble> {
        let seed = random();
        let what = format_args!("a pool is made for database {number}");
        self.pool_log.line_of(self.client, what);
        if self.lifetime == Lifetime::Ephemeral {
            let uuid = self.uuid(number);
            self.store.authorise(self.client, uuid)?;
            let spec = PoolSpec::shared_ephemeral(uuid);
            return Ok((self.store.create_pool(self.client, spec)?, seed));
        }
        let pool = self.store.create_pool(self.client, PoolSpec::PERSISTENT)?;
        let mut mark = [0; MARK_BYTES];
        mark[..16].copy_from_slice(&MARK);
        mark[16..24].copy_from_slice(&u64::from(number).to_le_bytes());
        mark[24..].copy_from_slice(&seed.to_le_bytes());
        match self.store.put(pool, Key::new(MARK_OBJECT, 0), &mark) {
            Put::Stored => Ok((pool, seed)),
            Put::Refused(reason) => {
                self.store.destroy_pool(pool)?;
                Err(reason.into())
            }
        }
    }
}

/// The databases of all clients.
#[derive(Debug)]
pub struct Keyspaces {
    store: Arc<Store>,
    lifetime: Lifetime,
    pool_log: Arc<PoolLog>,
    clients: Mutex<HashMap<ClientId, Arc<Keyspace>>>,
}

impl Keyspaces {
    /// An empty set of databases in `store`.
    pub fn new(store: Arc<Store>, access: Arc<dyn Access>, lifetime: Lifetime) -> Self {
        let pool_log = Arc::new(PoolLog::new("RESP", access));
        Self { store, lifetime, pool_log, clients: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClientId, Arc<Keyspace>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store.
    pub const fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The databases of a client.
    pub fn of(&self, client: ClientId) -> Arc<Keyspace> {
        let new = || {
            Arc::new(Keyspace {
                store: Arc::clone(&self.store),
                client,
                lifetime: self.lifetime,
                pool_log: Arc::clone(&self.pool_log),
                databases: Mutex::new(vec![None; DATABASES_MAX as usize]),
            })
        };
        Arc::clone(self.lock().entry(client).or_insert_with(new))
    }

    /// Opens the databases of an earlier daemon, so that clients need not wait for that.
    pub fn reopen(&self) {
        for client in self.store.clients() {
            if let Err(trouble) = self.of(client.id).reopen() {
                tracing::warn!(client = client.id.0, "RESP databases are not there: {trouble}");
            }
        }
    }

    /// All databases that are open. It closes those of removed clients.
    pub fn open(&self) -> Vec<Arc<Database>> {
        let mut clients = self.lock();
        clients.retain(|client, _| self.store.statistics(*client).is_ok());
        let keyspaces: Vec<_> = clients.values().cloned().collect();
        // A database that is being opened must not delay others.
        drop(clients);
        keyspaces.iter().flat_map(|keyspace| keyspace.open()).collect()
    }

    /// The number of keys of all databases, and the number of those that expire.
    pub fn keys(&self) -> (u64, u64) {
        let open = self.open();
        let sum = |count: fn(&Database) -> u64| open.iter().map(|database| count(database)).sum();
        (
            sum(|database| database.keys.load(Ordering::Relaxed)),
            sum(|database| database.expiring.load(Ordering::Relaxed)),
        )
    }
}
