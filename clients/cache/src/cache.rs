//! The cache: opening a store and pool, and the calls that move no values.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use spillway_client::{
    Embedded, Get as Got, Key, NvmeTcp, Operation, Outcome, Peer, Pool, Ring, RingOptions,
    Statistics, Store, Url,
};

use crate::error::Error;
use crate::pool;
use crate::record::{self, Parts, Record, VERSIONS};

/// Buffer for the first read of a record, bytes. A longer record is read again.
const ROOM_BYTES: usize = 512;
/// Records read in one batch.
const RECORDS: usize = 4096;
/// Keys listed in one command.
const LISTED: usize = 4096;

/// The result of reading a record.
type Read<'a> = Result<Option<Record<'a>>, Error>;

/// Settings of a [`Cache`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name of the pool, which is created if it is missing. All processes that open the same name as the same client
    /// use the same pool. 1 to 255 bytes.
    pub name: String,
    /// A shared pool of several clients instead. The store's operator must allow this client to join it.
    pub shared: Option<u128>,
    /// Longest wait of a call for the store. A `timeout` in the URL overrides it.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { name: "default".into(), shared: None, timeout: Duration::from_secs(30) }
    }
}

/// An open cache. All calls block until they are answered, and may be made from any number of threads.
pub struct Cache {
    pub(crate) store: Box<dyn Store>,
    pub(crate) pool: Pool,
    /// The version of the next parts.
    versions: AtomicU32,
    /// Buffer for records, kept so that calls need not allocate it.
    scratch: Mutex<Vec<u8>>,
}

/// A store of this host, or of this guest's host.
fn ring(peer: Peer, timeout: Duration) -> Result<Box<dyn Store>, Error> {
    let options = RingOptions { timeout, ..RingOptions::of(&peer) };
    Ok(Box::new(Ring::connect_to(peer, options)?))
}

impl Cache {
    /// Opens the store that `url` names, and the pool.
    ///
    /// # Errors
    /// [`Error::Store`] for a store or pool that can't be opened, [`Error::Name`].
    pub fn open(url: &str, options: &Options) -> Result<Self, Error> {
        let store: Box<dyn Store> = match url.parse().map_err(Error::Store)? {
            Url::Embedded { capacity_bytes } => Box::new(Embedded::open(capacity_bytes)?),
            Url::Ring { path } => ring(Peer::Daemon(path), options.timeout)?,
            Url::Guest { path, pages } => ring(Peer::Agent { path, pages }, options.timeout)?,
            Url::NvmeTcp { tls, host, port, subsystem, options: mut asked } => {
                let timeout_s = options.timeout.as_secs().clamp(1, 3600) as u16;
                asked.timeout_s = asked.timeout_s.or(Some(timeout_s));
                Box::new(NvmeTcp::open(tls, &host, port, subsystem.as_deref(), &asked)?)
            }
        };
        Self::over(store, options)
    }

    /// Opens the pool in an open store.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn over(store: Box<dyn Store>, options: &Options) -> Result<Self, Error> {
        let pool = match options.shared {
            Some(uuid) => pool::shared(&*store, uuid)?,
            None => pool::named(&*store, options.name.as_bytes())?,
        };
        let mut first = [0; 4];
        rustix::rand::getrandom(&mut first, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::Store(errno.into()))?;
        let versions = AtomicU32::new(u32::from_ne_bytes(first));
        Ok(Self { store, pool, versions, scratch: Mutex::default() })
    }

    /// A version that no recent put of this cache has used. Another cache is unlikely to have used it.
    pub(crate) fn version(&self) -> u32 {
        self.versions.fetch_add(1, Ordering::Relaxed) % (VERSIONS - 1) + 1
    }

    /// Executes operations.
    pub(crate) fn batch(
        &self,
        operations: &mut [Operation<'_>],
    ) -> Vec<Result<Outcome, spillway_client::Error>> {
        let mut outcomes = Vec::new();
        if !operations.is_empty() {
            self.store.batch(operations, &mut outcomes);
        }
        outcomes
    }

    /// Calls `each` with the record at each key's place, the key's number and its object. The record may
    /// be another key's.
    pub(crate) fn records(&self, keys: &[&[u8]], each: &mut dyn FnMut(usize, u64, Read<'_>)) {
        // A concurrent call allocates its own buffer.
        let mut own = Vec::new();
        let mut kept = self.scratch.try_lock().ok();
        let scratch = kept.as_deref_mut().unwrap_or(&mut own);
        for (group, keys) in keys.chunks(RECORDS).enumerate() {
            let wanted = keys.len() * ROOM_BYTES;
            if scratch.len() < wanted {
                scratch.resize(wanted, 0);
            }
            let objects: Vec<u64> = keys.iter().map(|key| record::object(key)).collect();
            let rooms = scratch.chunks_mut(ROOM_BYTES);
            let get = |(&object, value)| self.get_record(object, value);
            let mut operations: Vec<_> = objects.iter().zip(rooms).map(get).collect();
            let outcomes = self.batch(&mut operations);
            for (at, outcome) in outcomes.into_iter().enumerate() {
                let room = &scratch[at * ROOM_BYTES..][..ROOM_BYTES];
                let mut long = Vec::new();
                let found = match outcome {
                    Ok(Outcome::Get(Got::Short(bytes))) => {
                        self.long_record(objects[at], bytes, &mut long)
                    }
                    Ok(Outcome::Get(Got::Hit(bytes))) => Ok(Some(&room[..bytes])),
                    Ok(_) => Ok(None),
                    Err(error) => Err(error.into()),
                };
                let decode = |bytes: Option<_>| Ok(bytes.map(Record::decode).transpose()?);
                each(group * RECORDS + at, objects[at], found.and_then(decode));
            }
        }
    }

    /// Requests a record.
    fn get_record<'a>(&self, object: u64, value: &'a mut [u8]) -> Operation<'a> {
        Operation::Get { pool: self.pool, key: record::record_key(object), value }
    }

    /// Reads a record of `bytes` into `long`. A record that has grown meanwhile counts as missing, because its put is
    /// still in progress.
    fn long_record<'a>(
        &self,
        object: u64,
        bytes: usize,
        long: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, Error> {
        long.resize(bytes, 0);
        match self.store.execute(&mut self.get_record(object, long))? {
            Outcome::Get(Got::Hit(bytes)) => Ok(Some(&long[..bytes])),
            _ => Ok(None),
        }
    }

    /// Whether each key has a value. Uses one batch.
    pub fn exists(&self, keys: &[&[u8]]) -> Vec<Result<bool, Error>> {
        let mut found = Vec::with_capacity(keys.len());
        self.records(keys, &mut |number, _, record| {
            found
                .push(record.map(|record| record.is_some_and(|record| record.is_of(keys[number]))));
        });
        found
    }

    /// The number of keys before the first key without a value. Uses one batch.
    ///
    /// # Errors
    /// The store failed for one of these keys.
    pub fn prefix(&self, keys: &[&[u8]]) -> Result<usize, Error> {
        let mut count = 0;
        for found in self.exists(keys) {
            if !found? {
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Removes values; returns whether there was one under each key.
    pub fn delete(&self, keys: &[&[u8]]) -> Vec<Result<bool, Error>> {
        let mut removed = Vec::with_capacity(keys.len());
        let (mut operations, mut owners) = (Vec::new(), Vec::new());
        self.records(keys, &mut |number, object, record| {
            removed.push(record.map(|record| {
                let Some(record) = record.filter(|record| record.key == keys[number]) else {
                    return false;
                };
                // Also removes remains of interrupted or concurrent puts.
                operations.push(Operation::FlushObject { pool: self.pool, object });
                owners.push(number);
                record.is_of(keys[number])
            }));
        });
        for (&owner, outcome) in owners.iter().zip(self.batch(&mut operations)) {
            if let (Err(error), true) = (outcome, removed[owner].is_ok()) {
                removed[owner] = Err(error.into());
            }
        }
        removed
    }

    /// Removes one entry.
    pub(crate) const fn flush<'a>(&self, key: Key) -> Operation<'a> {
        Operation::Flush { pool: self.pool, key }
    }

    /// Removes the parts of a value.
    pub(crate) fn flush_parts<'a>(
        &self,
        object: u64,
        parts: Option<Parts>,
    ) -> impl Iterator<Item = Operation<'a>> {
        let count = parts.map_or(0, |parts| parts.count());
        let key = move |number| parts.map(|parts| parts.key(object, number));
        let pool = self.pool;
        (0..count).filter_map(key).map(move |key| Operation::Flush { pool, key })
    }

    /// Removes all values of the pool. Values that others put meanwhile may stay.
    ///
    /// # Errors
    /// Errors of the connection to the store.
    pub fn clear(&self) -> Result<(), Error> {
        let mut from = None;
        loop {
            let keys = self.store.list(self.pool, from, LISTED)?;
            // The pool's name stays.
            let entries = keys.iter().filter(|&&key| key != pool::NAME);
            let mut operations: Vec<_> = entries.map(|&key| self.flush(key)).collect();
            for outcome in self.batch(&mut operations) {
                outcome?;
            }
            if keys.len() < LISTED {
                return Ok(());
            }
            from = keys.last().copied();
        }
    }

    /// The counters of this client of the store, over all its pools and connections.
    ///
    /// # Errors
    /// Errors of the connection to the store.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.store.statistics()?)
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("pool", &self.pool).finish_non_exhaustive()
    }
}
