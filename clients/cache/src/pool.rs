//! Pools by name: a pool of the store has none, so it is written into the pool.

use std::thread;
use std::time::{Duration, Instant};

use spillway_client::{Get, Key, Lifetime, Pool, PoolInfo, PoolSpec, Put, Sharing, Store};

use crate::error::Error;

/// Where a pool's name lies. No key has this object.
pub const NAME: Key = Key::new(0, u32::MAX);
const MAGIC: [u8; 6] = *b"SPKN\x01\0";
const NAME_BYTES_MAX: usize = 255;
const ENTRY_BYTES_MAX: usize = MAGIC.len() + NAME_BYTES_MAX;
/// How long a pool without name and values may be one that somebody is about to name.
const NAMED_WITHIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// The shared pool of `uuid`, which is joined or made.
pub fn shared(store: &dyn Store, uuid: u128) -> Result<Pool, Error> {
    let spec = PoolSpec { lifetime: Lifetime::Persistent, sharing: Sharing::Shared { uuid } };
    Ok(store.open_pool(spec)?)
}

/// This client's pool of that name, which is made where there is none.
///
/// Of several that make one at the same time all take the one that was made first, and remove theirs.
pub fn named(store: &dyn Store, name: &[u8]) -> Result<Pool, Error> {
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Err(Error::Name(name.len()));
    }
    let entry = [&MAGIC[..], name].concat();
    for info in private(store)? {
        if entry_of(store, info.pool)?.as_deref() == Some(&entry) {
            return Ok(info.pool);
        }
    }
    let own = store.open_pool(PoolSpec::PERSISTENT)?;
    let chosen = name_it(store, own, &entry);
    if !matches!(chosen, Ok(pool) if pool == own) {
        // It has at most a name in it. What went wrong before says more than this could.
        let _ = store.close_pool(own);
    }
    chosen
}

/// Writes its name into a pool that was just made. Gives the pool of that name, which may be another by now.
fn name_it(store: &dyn Store, own: Pool, entry: &[u8]) -> Result<Pool, Error> {
    if let Put::Refused(_) = store.put(own, NAME, entry)? {
        return Err(spillway_client::Error::Full.into());
    }
    let deadline = Instant::now() + NAMED_WITHIN;
    loop {
        let mut waits = false;
        for info in private(store)? {
            if info.pool == own {
                break;
            }
            match entry_of(store, info.pool) {
                Ok(Some(other)) if other == entry => return Ok(info.pool),
                Ok(None) if info.pages == 0 => waits = true,
                // It is another's, or it has gone.
                Ok(_) | Err(Error::Store(spillway_client::Error::NoPool)) => {}
                Err(error) => return Err(error),
            }
        }
        if !waits || Instant::now() >= deadline {
            return Ok(own);
        }
        thread::sleep(PAUSE);
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
