//! Opening a database of an earlier daemon. It completes a change that a kill interrupted, and counts the keys.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_store::{Key, Lifetime, PoolId};

use crate::database::Database;
use crate::record::{CHUNKS_BIT, Footer, MARK_OBJECT, Record};
use crate::trouble::Trouble;

/// Keys that are listed by one call of the store.
const LISTED: usize = 1024;
/// The least number of keys for a log line about the time.
const TOLD_KEYS: u64 = 100_000;

/// The result of a pass over a pool.
#[derive(Default)]
struct Found {
    keys: u64,
    expiring: u64,
    /// Objects of chunks to which records refer.
    named: HashSet<u64>,
    /// The keys of all chunks in the store.
    chunks: Vec<Key>,
}

/// Repairs a database and counts its keys, before any connection uses it.
///
/// # Errors
/// [`Trouble`] with the store.
pub fn open(database: &Database) -> Result<(), Trouble> {
    if database.lifetime == Lifetime::Ephemeral {
        // Its values did not survive the earlier daemon.
        return Ok(());
    }
    let began = Instant::now();
    let found = count(database)?;
    let orphans = found.chunks.iter().filter(|chunk| !found.named.contains(&chunk.object));
    orphans.for_each(|&chunk| {
        database.store.flush(database.pool(), chunk);
    });
    if found.keys >= TOLD_KEYS {
        let took_ms = began.elapsed().as_millis() as u64;
        tracing::info!(keys = found.keys, took_ms, "a RESP database was gone through");
    }
    Ok(())
}

/// Counts the keys of a database, and removes records that a newer one replaces. No other thread may change the
/// database meanwhile.
///
/// # Errors
/// [`Trouble`] with the store.
fn count(database: &Database) -> Result<Found, Trouble> {
    let pool = database.pool();
    let mut found = Found::default();
    each_key(database, |key| match key.object {
        MARK_OBJECT => Ok(()),
        object if object & CHUNKS_BIT != 0 => {
            found.chunks.push(key);
            Ok(())
        }
        _ => found.record(database, pool, key),
    })?;
    database.keys.store(found.keys, Ordering::Relaxed);
    database.expiring.store(found.expiring, Ordering::Relaxed);
    Ok(found)
}

impl Database {
    /// Counts the keys again, as after a restart.
    ///
    /// # Errors
    /// [`Trouble`] with the store.
    pub fn recount(&self) -> Result<(), Trouble> {
        let _all = self.lock_everything();
        count(self).map(drop)
    }
}

/// Calls `visit` with each key of the pool. `visit` may remove the key.
fn each_key(
    database: &Database,
    mut visit: impl FnMut(Key) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let (store, pool) = (&database.store, database.pool());
    let mut keys = vec![Key::new(0, 0); LISTED];
    let mut from = None;
    loop {
        let listed = store.list_keys(pool, from, &mut keys)?;
        // The list begins with the last key of the previous one, if it still exists.
        let passed = usize::from(from.is_some() && keys.first() == from.as_ref());
        let last = keys[..listed].last().copied();
        for &key in &keys[passed.min(listed)..listed] {
            visit(key)?;
        }
        if listed < keys.len() {
            return Ok(());
        }
        from = last;
    }
}

impl Found {
    /// Counts a record. It removes the record if another of its key is newer, or if it is damaged.
    fn record(&mut self, database: &Database, pool: PoolId, key: Key) -> Result<(), Trouble> {
        let Some(footer) = newest(database, pool, key)? else {
            database.store.flush(pool, key);
            return Ok(());
        };
        self.keys += 1;
        self.expiring += u64::from(footer.expires_ms != 0);
        if footer.chunks != 0 {
            self.named.insert(footer.chunks);
        }
        Ok(())
    }
}

/// The footer of the record at `at`. `None` if there is no valid record, or if another of the same key is newer.
fn newest(database: &Database, pool: PoolId, at: Key) -> Result<Option<Footer>, Trouble> {
    let store = &database.store;
    let Some(record) = Record::read(store.inspect(pool, at)?) else { return Ok(None) };
    let footer = record.footer;
    let others = store.used_indexes(pool, at.object) & !(1 << at.index);
    if others == 0 {
        return Ok(record.with_key(|_| footer));
    }
    let is_newest = record.with_key(|key| -> Result<bool, Trouble> {
        for index in (0..u64::BITS).filter(|index| others >> index & 1 != 0) {
            let other = Record::read(store.inspect(pool, Key::new(at.object, index))?);
            if other.is_some_and(|it| it.is_of(key) && it.footer.version > footer.version) {
                return Ok(false);
            }
        }
        Ok(true)
    });
    Ok(is_newest.transpose()?.and_then(|newest| newest.then_some(footer)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use spillway_store::{ClientConfig, Config, PoolSpec, Put, Store};

    use super::*;
    use crate::database::Content;

    fn database() -> Arc<Database> {
        let store = Arc::new(Store::open(Config::embedded(64 << 20)).unwrap());
        let client = store.add_client(ClientConfig::default()).unwrap();
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
        Arc::new(Database::new(store, client, (0, Lifetime::Persistent), (pool, 7)))
    }

    fn set(database: &Database, key: &[u8], value: &[u8], expires_ms: u64) {
        database.at(key, 0, |place| place.put(Content::Inline(&[value]), expires_ms)).unwrap();
    }

    fn get(database: &Database, key: &[u8]) -> Vec<u8> {
        let mut value = Vec::new();
        database.at(key, 0, |place| place.read(&mut value)).unwrap();
        value
    }

    /// The store's key and the bytes of a key's record.
    fn record(database: &Database, key: &[u8]) -> (Key, Vec<u8>) {
        let (store, object) = (&database.store, database.object(key));
        let index = store.used_indexes(database.pool(), object).trailing_zeros();
        let at = Key::new(object, index);
        let mut bytes = vec![0; 100_000];
        let got = store.get(database.pool(), at, &mut bytes).unwrap();
        let spillway_store::Get::Hit(length) = got else { panic!("{got:?}") };
        bytes.truncate(length);
        (at, bytes)
    }

    #[test]
    fn the_newer_of_two_records_counts() {
        let database = database();
        set(&database, b"a", b"old", 0);
        let (at, old) = record(&database, b"a");
        set(&database, b"a", b"new", 9);
        set(&database, b"b", b"other", 0);
        // As if killed before the removal of the old record.
        assert_eq!(database.store.put(database.pool(), at, &old), Put::Stored);
        open(&database).unwrap();
        assert_eq!(get(&database, b"a"), b"new");
        assert_eq!(database.keys.load(Ordering::Relaxed), 2);
        assert_eq!(database.expiring.load(Ordering::Relaxed), 1);
        let used = database.store.used_indexes(database.pool(), at.object);
        assert_eq!(used.count_ones(), 1);
    }

    #[test]
    fn chunks_that_no_record_names_go() {
        let database = database();
        let value = vec![5; 200_000];
        let begun = || {
            let mut chunks = database.begin_chunks(value.len() as u64);
            chunks.push(&value);
            chunks
        };
        database.at(b"a", 0, |place| place.put(Content::Chunks(begun()), 0)).unwrap();
        let used =
            |database: &Database| database.store.statistics(database.client).unwrap().used_pages;
        let before = used(&database);
        // As if killed before the record was put.
        begun().keep();
        assert!(used(&database) > before);
        open(&database).unwrap();
        assert_eq!(used(&database), before);
        assert_eq!(get(&database, b"a"), value);
    }

    #[test]
    fn what_is_no_record_goes() {
        let database = database();
        set(&database, b"a", b"1", 0);
        let strange = Key::new(12_345, 3);
        let put = database.store.put(database.pool(), strange, b"nobody's");
        assert_eq!(put, Put::Stored);
        open(&database).unwrap();
        assert!(!database.store.exists(database.pool(), strange));
        assert_eq!(
            (get(&database, b"a"), database.keys.load(Ordering::Relaxed)),
            (b"1".to_vec(), 1)
        );
    }

    #[test]
    fn keys_of_one_hash_are_apart() {
        let database = database();
        set(&database, b"a", b"1", 0);
        // A record of another key with the same object, as after a collision.
        let other = Database::new(
            Arc::clone(&database.store),
            database.client,
            (0, Lifetime::Persistent),
            (database.pool(), 8),
        );
        set(&other, b"b", b"2", 0);
        let (_, bytes) = record(&other, b"b");
        let at = Key::new(database.object(b"a"), 40);
        assert_eq!(database.store.put(database.pool(), at, &bytes), Put::Stored);
        assert_eq!(get(&database, b"a"), b"1");
        set(&database, b"a", b"3", 0);
        assert_eq!(get(&database, b"a"), b"3");
        assert!(database.store.exists(database.pool(), at));
    }
}
