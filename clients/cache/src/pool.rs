//! Pools by name. The store's pools have no names, so the name is a value in the pool.

use std::thread;
use std::time::{Duration, Instant};

use spillway_client::{Get, Key, Lifetime, Pool, PoolInfo, PoolSpec, Put, Sharing, Store};

use crate::error::Error;

/// The object of a pool's name. No key uses it.
pub const NAME: Key = Key::new(0, u32::MAX);
/// Prefix of a pool's name while the pool is a candidate: several processes may have created one at
/// the same time.
const CANDIDATE: [u8; 6] = *b"SPKN\x01\x01";
/// Prefix of a pool's name once the pool is chosen: every process that finds it uses it.
const CHOSEN: [u8; 6] = *b"SPKN\x01\0";
const NAME_BYTES_MAX: usize = 255;
const ENTRY_BYTES_MAX: usize = CHOSEN.len() + NAME_BYTES_MAX;
/// Longest time in which a process names or chooses a pool.
const NAMED_WITHIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// Joins or creates the shared pool of `uuid`.
pub fn shared(store: &dyn Store, uuid: u128) -> Result<Pool, Error> {
    let spec = PoolSpec { lifetime: Lifetime::Persistent, sharing: Sharing::Shared { uuid } };
    Ok(store.open_pool(spec)?)
}

/// This client's pool of that name, which is created if it is missing.
///
/// If several processes create one at the same time, all use the one that was created first, and the others remove
/// theirs. Each writes the name to its own pool as a candidate, and waits for earlier pools that are not named yet.
pub fn named(store: &dyn Store, name: &[u8]) -> Result<Pool, Error> {
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Err(Error::Name(name.len()));
    }
    if let Some(chosen) = look(store, name, None)?.chosen {
        return Ok(chosen);
    }
    let own = store.open_pool(PoolSpec::PERSISTENT)?;
    let chosen = choose(store, own, name);
    if !matches!(chosen, Ok(pool) if pool == own) {
        // It contains at most a name. The earlier error is more useful than one of this call.
        let _ = store.close_pool(own);
    }
    chosen
}

/// Makes a new pool a candidate for the name. Returns the chosen pool.
fn choose(store: &dyn Store, own: Pool, name: &[u8]) -> Result<Pool, Error> {
    write(store, own, CANDIDATE, name)?;
    let deadline = Instant::now() + NAMED_WITHIN;
    loop {
        let found = look(store, name, Some(own))?;
        if let Some(chosen) = found.chosen {
            return Ok(chosen);
        }
        let late = Instant::now() >= deadline;
        if late || !found.waits && found.candidate.is_none() {
            // The process of the first candidate was killed or hangs. If it continues, it will find
            // its pool chosen.
            let chosen = found.candidate.unwrap_or(own);
            match write(store, chosen, CHOSEN, name) {
                // It is gone by now.
                Err(Error::Store(spillway_client::Error::NoPool)) if chosen != own => continue,
                written => return written.map(|()| chosen),
            }
        }
        thread::sleep(PAUSE);
    }
}

/// The pools to which a name may refer.
#[derive(Default)]
struct Found {
    /// The chosen one.
    chosen: Option<Pool>,
    /// The first candidate before the own one.
    candidate: Option<Pool>,
    /// Whether a pool before the own one may become a candidate.
    waits: bool,
}

/// Looks for the pools to which `name` may refer. Without an own pool, looks only for the chosen
/// one.
fn look(store: &dyn Store, name: &[u8], own: Option<Pool>) -> Result<Found, Error> {
    let mut found = Found::default();
    let mut before = own.is_some();
    for info in private(store)? {
        before &= Some(info.pool) != own;
        match entry_of(store, info.pool) {
            Ok(Some(entry)) if is(&entry, CHOSEN, name) => {
                found.chosen = Some(info.pool);
                return Ok(found);
            }
            Ok(Some(entry)) if before && is(&entry, CANDIDATE, name) => {
                found.candidate = found.candidate.or(Some(info.pool));
            }
            // The store counts a page before it becomes visible: a single page may be the name.
            Ok(None) if before && info.pages <= 1 => found.waits = true,
            // It has another name, or is gone.
            Ok(_) | Err(Error::Store(spillway_client::Error::NoPool)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn is(entry: &[u8], state: [u8; 6], name: &[u8]) -> bool {
    entry.strip_prefix(&state) == Some(name)
}

/// Writes a name into a pool.
fn write(store: &dyn Store, pool: Pool, state: [u8; 6], name: &[u8]) -> Result<(), Error> {
    match store.put(pool, NAME, &[&state[..], name].concat())? {
        Put::Refused(_) => Err(spillway_client::Error::Full.into()),
        _ => Ok(()),
    }
}

/// The pools that may have a name, in the order of their creation.
fn private(store: &dyn Store) -> Result<Vec<PoolInfo>, Error> {
    let mut pools = store.pools()?;
    pools.retain(|info| info.spec == PoolSpec::PERSISTENT);
    Ok(pools)
}

/// The value in the place of a pool's name.
fn entry_of(store: &dyn Store, pool: Pool) -> Result<Option<Vec<u8>>, Error> {
    let mut room = [0; ENTRY_BYTES_MAX];
    Ok(match store.get(pool, NAME, &mut room)? {
        Get::Hit(bytes) => Some(room[..bytes].to_vec()),
        // Too long for a name.
        Get::Short(_) => Some(Vec::new()),
        Get::Miss => None,
    })
}
