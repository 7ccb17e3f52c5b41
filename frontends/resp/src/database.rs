//! One database: a pool of the store. The hash of a key is the object of its record.
//!
//! All data of a key lies in the store, so it survives the daemon. A record is never changed in place: the new record
//! is put at another index of the same object, then the old one is removed. If the daemon is killed between the two,
//! the record with the higher version counts (see [`crate::opening`]). All work on a key happens under the lock of its
//! stripe.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_store::{ClientId, Key, Lifetime, LongGet, PAGE_BYTES, PoolId, Put, Store};
use twox_hash::XxHash3_64;

use crate::chunks::{self, Chunks};
use crate::random::random;
use crate::record::{
    CHUNKS_BIT, FOOTER_BYTES, Footer, INLINE_BYTES_MAX, Record, copy_segments, key_offset,
};
use crate::trouble::Trouble;

/// The number of locks of a database.
const STRIPES: usize = 1024;
/// The indexes of an object that records may have. No record has the index 63, so a listing can continue from it,
/// behind the object.
pub const INDEXES: u32 = 63;

/// The counters of a database.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that found their key.
    pub hits: AtomicU64,
    /// Reads that did not find their key.
    pub misses: AtomicU64,
    /// Keys that expired.
    pub expired: AtomicU64,
}

/// A database.
#[derive(Debug)]
pub struct Database {
    /// The store with the pool.
    pub store: Arc<Store>,
    /// The client that owns the database.
    pub client: ClientId,
    /// The number of the database among those of the client.
    pub number: u32,
    /// Whether values survive, or may vanish.
    pub lifetime: Lifetime,
    pool: AtomicU64,
    /// The seed of the hash.
    seed: AtomicU64,
    stripes: Box<[Mutex<()>]>,
    /// The number of keys. An estimate if values may vanish.
    pub(crate) keys: AtomicU64,
    /// The number of keys that expire.
    pub(crate) expiring: AtomicU64,
    next_chunks: AtomicU64,
    /// Counters.
    pub counters: Counters,
    /// Whether the sweep removes expired keys. Otherwise only an access does.
    pub sweeps: AtomicBool,
}

/// A key whose stripe is locked, and its record.
#[derive(Debug)]
pub struct LockedKey<'a> {
    database: &'a Database,
    key: &'a [u8],
    pool: PoolId,
    object: u64,
    used: u64,
    index: u32,
    record: Option<Record<'a>>,
}

/// A value that [`LockedKey::put`] stores.
#[derive(Debug)]
pub enum Content<'a> {
    /// At most [`INLINE_BYTES_MAX`] bytes, as consecutive segments.
    Inline(&'a [&'a [u8]]),
    /// A value that has arrived in chunks.
    Chunks(Box<Chunks>),
}

impl Database {
    /// A database whose pool is `pool`.
    pub fn new(
        store: Arc<Store>,
        client: ClientId,
        (number, lifetime): (u32, Lifetime),
        (pool, seed): (PoolId, u64),
    ) -> Self {
        Self {
            store,
            client,
            number,
            lifetime,
            pool: pool.0.into(),
            seed: seed.into(),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            keys: AtomicU64::new(0),
            expiring: AtomicU64::new(0),
            // Random, so that the objects differ from those of earlier processes.
            next_chunks: AtomicU64::new(random()),
            counters: Counters::default(),
            sweeps: AtomicBool::new(true),
        }
    }

    /// The pool, which changes when the database is flushed.
    pub fn pool(&self) -> PoolId {
        PoolId(self.pool.load(Ordering::Acquire))
    }

    /// The object of a key's record.
    pub fn object(&self, key: &[u8]) -> u64 {
        let hash = XxHash3_64::oneshot_with_seed(self.seed.load(Ordering::Relaxed), key);
        // 0 is where listing begins.
        (hash & !CHUNKS_BIT).max(1)
    }

    /// An unused object for the chunks of a value.
    fn new_chunks(&self) -> u64 {
        self.next_chunks.fetch_add(2, Ordering::Relaxed) & !1 | CHUNKS_BIT
    }

    /// Begins to store a value of `total` bytes, more than fit into a record.
    pub fn begin_chunks(&self, total: u64) -> Box<Chunks> {
        Chunks::begin(&self.store, self.pool(), self.new_chunks(), total)
    }

    fn stripe(&self, object: u64) -> usize {
        object as usize % self.stripes.len()
    }

    /// Locks the stripe of a key, and gives the key's object. It tries again if a flush has changed the object
    /// meanwhile.
    fn lock_key(&self, key: &[u8]) -> (MutexGuard<'_, ()>, u64) {
        loop {
            let object = self.object(key);
            let locked = self.lock_stripe(self.stripe(object));
            if self.object(key) == object {
                return (locked, object);
            }
        }
    }

    /// Locks all stripes.
    pub(crate) fn lock_everything(&self) -> Vec<MutexGuard<'_, ()>> {
        (0..STRIPES).map(|stripe| self.lock_stripe(stripe)).collect()
    }

    fn lock_stripe(&self, stripe: usize) -> MutexGuard<'_, ()> {
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a key, and calls `act` with it. No other thread changes the key meanwhile.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn at<R>(
        &self,
        key: &[u8],
        now_ms: u64,
        act: impl FnOnce(&mut LockedKey<'_>) -> Result<R, Trouble>,
    ) -> Result<R, Trouble> {
        let (_locked, object) = self.lock_key(key);
        act(&mut self.find(key, object, now_ms)?)
    }

    /// Locks the stripes of several keys together, for [`Self::at_locked`].
    pub fn lock_all<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
    ) -> Vec<MutexGuard<'_, ()>> {
        loop {
            let seed = self.seed.load(Ordering::Relaxed);
            let mut stripes: Vec<_> =
                keys.clone().map(|key| self.stripe(self.object(key))).collect();
            // A fixed order prevents deadlocks.
            stripes.sort_unstable();
            stripes.dedup();
            let locked = stripes.into_iter().map(|stripe| self.lock_stripe(stripe)).collect();
            // A flush in between changes the stripes of the keys.
            if self.seed.load(Ordering::Relaxed) == seed {
                return locked;
            }
        }
    }

    /// Like [`Self::at`], for a caller that has locked the key's stripe.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn at_locked<R>(
        &self,
        key: &[u8],
        now_ms: u64,
        act: impl FnOnce(&mut LockedKey<'_>) -> Result<R, Trouble>,
    ) -> Result<R, Trouble> {
        act(&mut self.find(key, self.object(key), now_ms)?)
    }

    /// Removes a key if it has expired.
    pub(crate) fn remove_expired(&self, key: &[u8], now_ms: u64) -> Result<(), Trouble> {
        self.at(key, now_ms, |_| Ok(()))
    }

    fn find<'a>(
        &'a self,
        key: &'a [u8],
        object: u64,
        now_ms: u64,
    ) -> Result<LockedKey<'a>, Trouble> {
        let pool = self.pool();
        let used = self.store.used_indexes(pool, object);
        let mut place =
            LockedKey { database: self, key, pool, object, used, index: 0, record: None };
        let mut left = used;
        while left != 0 {
            let index = left.trailing_zeros();
            left &= left - 1;
            let value = self.store.look_up(pool, Key::new(object, index), usize::MAX)?;
            let Some(record) = Record::read(value).filter(|record| record.is_of(key)) else {
                continue;
            };
            (place.index, place.record) = (index, Some(record));
            if place.record.as_ref().is_some_and(|record| record.footer.is_over(now_ms)) {
                self.counters.expired.fetch_add(1, Ordering::Relaxed);
                place.remove();
            }
            break;
        }
        if used == 0 {
            // This lookup lets the store count the miss.
            drop(self.store.look_up(pool, Key::new(object, 0), usize::MAX)?);
        }
        Ok(place)
    }

    /// Calls `visit` with the name and footer of each key of an object. `visit` must not use the database: a stripe is
    /// locked.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn each_record(
        &self,
        object: u64,
        mut visit: impl FnMut(&[u8], &Footer),
    ) -> Result<(), Trouble> {
        let _locked = self.lock_stripe(self.stripe(object));
        let (store, pool) = (&self.store, self.pool());
        let used = store.used_indexes(pool, object);
        for index in (0..INDEXES).filter(|index| used >> index & 1 != 0) {
            if let Some(record) = Record::read(store.inspect(pool, Key::new(object, index))?) {
                let _ = record.with_key(|name| visit(name, &record.footer));
            }
        }
        Ok(())
    }

    /// Removes all keys at once. `renew` replaces the pool, and gives the new one and its seed.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn flush(
        &self,
        renew: impl FnOnce(PoolId) -> Result<(PoolId, u64), Trouble>,
    ) -> Result<(), Trouble> {
        let _all = self.lock_everything();
        let (pool, seed) = renew(self.pool())?;
        self.seed.store(seed, Ordering::Relaxed);
        self.pool.store(pool.0, Ordering::Release);
        self.keys.store(0, Ordering::Relaxed);
        self.expiring.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn count(&self, keys: i64, expiring: i64) {
        // The counters are estimates if values may vanish: they must not wrap below 0.
        let change = |counter: &AtomicU64, by: i64| match by {
            0 => {}
            by => {
                let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                    Some(now.saturating_add_signed(by))
                });
            }
        };
        change(&self.keys, keys);
        change(&self.expiring, expiring);
    }
}

impl<'a> LockedKey<'a> {
    /// The footer of the key's record, if the key exists.
    pub fn footer(&self) -> Option<Footer> {
        self.record.as_ref().map(|record| record.footer)
    }

    /// Counts a read of the key as a hit or a miss.
    pub fn count_read(&self) {
        let counters = &self.database.counters;
        let counter = if self.is_taken() { &counters.hits } else { &counters.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there is a record of the key. Chunks of its value may have vanished: see [`Self::is_whole`].
    pub const fn is_taken(&self) -> bool {
        self.record.is_some()
    }

    /// Whether the key and its whole value exist. If a chunk has vanished, the key is removed.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn is_whole(&mut self) -> Result<bool, Trouble> {
        Ok(self.is_taken() && (self.is_inline() || self.parts()?.is_some()))
    }

    /// The length of the value, bytes; 0 without a value.
    pub fn length(&self) -> u64 {
        self.footer().map_or(0, |footer| footer.value_bytes)
    }

    /// Whether the value lies in the record. Also true without a value.
    pub fn is_inline(&self) -> bool {
        self.footer().is_none_or(|footer| footer.chunks == 0)
    }

    /// Appends bytes `from` to `to` of a value that lies in its record to `out`.
    pub fn copy(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        if let Some(record) = &self.record
            && from < to
        {
            record.copy(from as usize, to as usize, out);
        }
    }

    /// The chunks of the value in its present state. `None` if one has vanished: the key is removed then.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn parts(&mut self) -> Result<Option<Vec<LongGet>>, Trouble> {
        let Some(footer) = self.footer() else { return Ok(None) };
        let parts = chunks::parts(&self.database.store, self.pool, &footer)?;
        if parts.is_none() {
            self.remove();
        }
        Ok(parts)
    }

    /// Appends the whole value to `out`, from the record or from chunks. False if it has vanished.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn read(&mut self, out: &mut Vec<u8>) -> Result<bool, Trouble> {
        if self.is_inline() {
            self.copy(0, self.length(), out);
            return Ok(self.is_taken());
        }
        let Some(parts) = self.parts()? else { return Ok(false) };
        parts.iter().for_each(|part| part.parts().for_each(|part| out.extend_from_slice(part)));
        Ok(true)
    }

    /// Sets the key's value to `content`. The key expires at `expires_ms`, 0 for never.
    ///
    /// # Errors
    /// [`Trouble`]: the key is unchanged.
    pub fn put(&mut self, content: Content<'_>, expires_ms: u64) -> Result<(), Trouble> {
        let (segments, value_bytes, mut arrived): (&[&[u8]], _, _) = match content {
            Content::Inline(segments) => {
                let bytes = segments.iter().map(|segment| segment.len() as u64).sum();
                (segments, bytes, None)
            }
            Content::Chunks(chunks) => (&[], chunks.total(), Some(chunks)),
        };
        if let Some(chunks) = &mut arrived {
            chunks.finish(self.pool)?;
        }
        let old = self.footer();
        let footer = Footer {
            value_bytes,
            expires_ms,
            version: old.map_or(1, |old| old.version + 1),
            chunks: arrived.as_ref().map_or(0, |chunks| chunks.object()),
            key_bytes: self.key.len() as u32,
        };
        self.replace(footer, segments)?;
        if let Some(chunks) = arrived {
            chunks.keep();
        }
        if let Some(old) = old.filter(|old| old.chunks != 0) {
            chunks::remove(&self.database.store, self.pool, &old);
        }
        Ok(())
    }

    /// Changes the time at which the key expires, 0 for never.
    ///
    /// # Errors
    /// [`Trouble`]: the key is unchanged.
    pub fn set_expiry(&mut self, expires_ms: u64) -> Result<(), Trouble> {
        let Some(old) = self.footer() else { return Ok(()) };
        let mut value = Vec::new();
        self.copy(0, old.inline_bytes() as u64, &mut value);
        let footer = Footer { expires_ms, version: old.version + 1, ..old };
        self.replace(footer, &[&value])
    }

    /// Replaces the key's record, if there is one, by another.
    fn replace(&mut self, footer: Footer, segments: &[&[u8]]) -> Result<(), Trouble> {
        let free = (!self.used).trailing_zeros();
        if free >= INDEXES {
            return Err(Trouble::Crowded);
        }
        self.put_record(free, footer, segments)?;
        self.used |= 1 << free;
        let old = self.record.take();
        if let Some(old) = &old {
            self.drop_record();
            self.database.count(0, -i64::from(old.footer.expires_ms != 0));
        }
        self.index = free;
        self.database.count(i64::from(old.is_none()), i64::from(footer.expires_ms != 0));
        Ok(())
    }

    fn put_record(&self, index: u32, footer: Footer, segments: &[&[u8]]) -> Result<(), Trouble> {
        let inline_bytes = footer.inline_bytes();
        debug_assert!(inline_bytes <= INLINE_BYTES_MAX, "longer values come in chunks");
        let key_at = key_offset(inline_bytes, self.key.len());
        let length = key_at + self.key.len() + FOOTER_BYTES;
        let (store, at) = (&self.database.store, Key::new(self.object, index));
        let end = footer.encode(self.key);
        let put = if length < PAGE_BYTES {
            let mut page = [0; PAGE_BYTES];
            let record = &mut page[..length];
            copy_segments(segments, 0, &mut record[..key_at]);
            record[key_at..][..self.key.len()].copy_from_slice(self.key);
            record[length - FOOTER_BYTES..].copy_from_slice(&end);
            store.put(self.pool, at, record)
        } else {
            let behind = [self.key, &end[..]];
            store.put_long(self.pool, at, length, |offset, part| {
                let before = key_at.saturating_sub(offset).min(part.len());
                let (value, rest) = part.split_at_mut(before);
                copy_segments(segments, offset, value);
                copy_segments(&behind, (offset + before).saturating_sub(key_at), rest);
            })
        };
        match put {
            Put::Stored => Ok(()),
            Put::Refused(reason) => Err(reason.into()),
        }
    }

    fn drop_record(&mut self) {
        self.database.store.flush(self.pool, Key::new(self.object, self.index));
        self.used &= !(1 << self.index);
    }

    /// Removes the key. True if it existed.
    pub fn remove(&mut self) -> bool {
        let Some(record) = self.record.take() else { return false };
        let footer = record.footer;
        drop(record);
        self.drop_record();
        chunks::remove(&self.database.store, self.pool, &footer);
        self.database.count(-1, -i64::from(footer.expires_ms != 0));
        true
    }
}
