//! Going through a database that an earlier daemon has left: what a kill cut short is finished, keys are counted.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_store::{Key, Lifetime, PoolId};

use crate::database::Database;
use crate::record::{CHUNKS_BIT, Footer, MARK_OBJECT, Record};
use crate::trouble::Trouble;

/// Keys that are listed at a time.
const LISTED: usize = 1024;
/// Keys from which on a line tells how long it took.
const TOLD_KEYS: u64 = 100_000;

/// What a pass over a pool has found.
#[derive(Default)]
struct Found {
    keys: u64,
    expiring: u64,
    /// Objects of chunks that records name.
    named: HashSet<u64>,
    /// Values that are chunks.
    chunks: Vec<Key>,
}

/// Brings a database in order that nobody uses yet.
///
/// # Errors
/// [`Trouble`] with the store.
pub fn open(database: &Database) -> Result<(), Trouble> {
    if database.lifetime == Lifetime::Ephemeral {
        // Its values are gone with the daemon that had them.
        return Ok(());
    }
    let (began, pool) = (Instant::now(), database.pool());
    let mut found = Found::default();
    each_key(database, |key| match key.object {
        MARK_OBJECT => Ok(()),
        object if object & CHUNKS_BIT != 0 => {
            found.chunks.push(key);
            Ok(())
        }
        _ => found.record(database, pool, key),
    })?;
    let orphans = found.chunks.iter().filter(|chunk| !found.named.contains(&chunk.object));
    orphans.for_each(|&chunk| {
        database.store.flush(pool, chunk);
    });
    database.keys.store(found.keys, Ordering::Relaxed);
    database.expiring.store(found.expiring, Ordering::Relaxed);
    if found.keys >= TOLD_KEYS {
        let took_ms = began.elapsed().as_millis() as u64;
        tracing::info!(keys = found.keys, took_ms, "a RESP database was gone through");
    }
    Ok(())
}

/// Shows every key of the pool to `visit`, which may remove it.
fn each_key(
    database: &Database,
    mut visit: impl FnMut(Key) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let (store, pool) = (&database.store, database.pool());
    let mut keys = vec![Key::new(0, 0); LISTED];
    let mut from = None;
    loop {
        let listed = store.list_keys(pool, from, &mut keys)?;
        // The last one comes again first, if it is still there.
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
    /// Counts a record, unless another of its key is newer.
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

/// What the record at `at` says, if it is one and no other of the same key is newer.
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
