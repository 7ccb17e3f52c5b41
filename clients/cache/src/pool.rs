//! Pools by name: a pool of the store has none, so it is written into the pool.

use std::thread;
use std::time::{Duration, Instant};

use spillway_client::{Get, Key, Lifetime, Pool, PoolInfo, PoolSpec, Put, Sharing, Store};

use crate::error::Error;

/// Where a pool's name lies. No key has this object.
pub const NAME: Key = Key::new(0, u32::MAX);
/// A pool's name begins so while those who made one at the same time look whose it is.
const CANDIDATE: [u8; 6] = *b"SPKN\x01\x01";
/// And so when it is known: whoever finds it takes it.
const CHOSEN: [u8; 6] = *b"SPKN\x01\0";
const NAME_BYTES_MAX: usize = 255;
const ENTRY_BYTES_MAX: usize = CHOSEN.len() + NAME_BYTES_MAX;
/// How long a pool may be one that somebody is about to name, or to choose.
const NAMED_WITHIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// The shared pool of `uuid`, which is joined or made.
pub fn shared(store: &dyn Store, uuid: u128) -> Result<Pool, Error> {
    let spec = PoolSpec { lifetime: Lifetime::Persistent, sharing: Sharing::Shared { uuid } };
    Ok(store.open_pool(spec)?)
}

/// This client's pool of that name, which is made where there is none.
///
/// Of several that make one at the same time all take the one that was made first, and remove theirs. Each writes the
/// name into its own as a candidate, and waits for those who made a pool before it and have not named it yet.
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
        // It has at most a name in it. What went wrong before says more than this could.
        let _ = store.close_pool(own);
    }
    chosen
}

/// Makes a pool that was just made a candidate for the name. Gives the pool that is chosen.
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
            // Whoever made the first candidate was killed, or hangs: it finds that it is chosen.
            let chosen = found.candidate.unwrap_or(own);
            match write(store, chosen, CHOSEN, name) {
                // It has gone meanwhile.
                Err(Error::Store(spillway_client::Error::NoPool)) if chosen != own => continue,
                written => return written.map(|()| chosen),
            }
        }
        thread::sleep(PAUSE);
    }
}

/// The pools that a name may mean.
#[derive(Default)]
struct Found {
    /// The one that it means.
    chosen: Option<Pool>,
    /// The first candidate before one's own.
    candidate: Option<Pool>,
    /// Whether a pool before one's own may become one.
    waits: bool,
}

/// Looks for the pools that `name` may mean. Without a pool of one's own, only for the chosen one.
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
            // The store counts a page before anybody finds it: one may be the name.
            Ok(None) if before && info.pages <= 1 => found.waits = true,
            // It is another's, or it has gone.
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

/// The pools that may bear a name, in the order in which they were made.
fn private(store: &dyn Store) -> Result<Vec<PoolInfo>, Error> {
    let mut pools = store.pools()?;
    pools.retain(|info| info.spec == PoolSpec::PERSISTENT);
    Ok(pools)
}

/// What lies where a pool's name does.
fn entry_of(store: &dyn Store, pool: Pool) -> Result<Option<Vec<u8>>, Error> {
    let mut room = [0; ENTRY_BYTES_MAX];
    Ok(match store.get(pool, NAME, &mut room)? {
        Get::Hit(bytes) => Some(room[..bytes].to_vec()),
        // Too long for a name.
        Get::Short(_) => Some(Vec::new()),
        Get::Miss => None,
    })
}
