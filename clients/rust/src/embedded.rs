//! A store in the program's own process.

use spillway_store::{ClientConfig, ClientId, Config, PageBuf, PoolId, VALUE_BYTES_MAX};
use spillway_types::{Key, PoolSpec, Sharing, Statistics};

use crate::{Error, Operation, Outcome, Pool, PoolInfo, Store};

/// A store in this process, which ends with it. A forked child has its own copy.
#[derive(Debug)]
pub struct Embedded {
    store: spillway_store::Store,
    client: ClientId,
}

impl Embedded {
    /// Opens an empty store that takes at most `capacity_bytes` of memory.
    ///
    /// # Errors
    /// [`Error::Failed`] for an invalid capacity, [`Error::Io`].
    pub fn open(capacity_bytes: u64) -> Result<Self, Error> {
        let store = spillway_store::Store::open(Config::embedded(capacity_bytes))?;
        let client = store.add_client(ClientConfig::default())?;
        Ok(Self { store, client })
    }

    fn check_length(value: &[u8]) -> Result<(), Error> {
        match value.len() {
            1..=VALUE_BYTES_MAX => Ok(()),
            bytes => Err(Error::Length { bytes, limit: VALUE_BYTES_MAX }),
        }
    }
}

impl Store for Embedded {
    fn open_pool(&self, spec: PoolSpec) -> Result<Pool, Error> {
        if let Sharing::Shared { uuid } = spec.sharing {
            // The process is both the operator and the only client.
            self.store.authorise(self.client, uuid)?;
        }
        Ok(Pool(self.store.create_pool(self.client, spec)?.0))
    }

    fn join_pool(&self, uuid: u128) -> Result<Pool, Error> {
        self.store.authorise(self.client, uuid)?;
        Ok(Pool(self.store.join_pool(self.client, uuid)?.0))
    }

    fn close_pool(&self, pool: Pool) -> Result<(), Error> {
        match self.store.destroy_pool(PoolId(pool.0)) {
            Err(spillway_store::Error::WrongSharing) => {
                Ok(self.store.leave_pool(PoolId(pool.0))?)
            }
            done => Ok(done?),
        }
    }

    fn pools(&self) -> Result<Vec<PoolInfo>, Error> {
        let info = |pool: spillway_types::PoolInfo| PoolInfo {
            pool: Pool(pool.id.0),
            spec: pool.spec,
            pages: pool.pages,
            identity: self.store.identity(pool.id),
        };
        Ok(self.store.pools(self.client)?.into_iter().map(info).collect())
    }

    fn list(&self, pool: Pool, from: Option<Key>, most: usize) -> Result<Vec<Key>, Error> {
        let pages = self.store.pools(self.client)?.iter().map(|pool| pool.pages).sum::<u64>();
        // No pool has more values than the client has pages, except values that are put meanwhile.
        let mut keys = vec![Key::new(0, 0); most.min(pages as usize + 1)];
        let listed = self.store.list_keys(PoolId(pool.0), from, &mut keys)?;
        keys.truncate(listed);
        Ok(keys)
    }

    fn execute(&self, operation: &mut Operation<'_>) -> Result<Outcome, Error> {
        Ok(match operation {
            Operation::Put { pool, key, value } => {
                Self::check_length(value)?;
                match self.store.put(PoolId(pool.0), *key, value) {
                    spillway_types::Put::Refused(spillway_types::Refusal::NoPool) => {
                        return Err(Error::NoPool);
                    }
                    put => Outcome::Put(put),
                }
            }
            Operation::Get { pool, key, value } => {
                Outcome::Get(self.store.get(PoolId(pool.0), *key, value)?)
            }
            Operation::Take { pool, key, value } => {
                let mut scratch = PageBuf::ZERO;
                let room = value.len();
                Outcome::Get(self.store.take(
                    PoolId(pool.0),
                    *key,
                    room,
                    &mut scratch,
                    |at, part| value[at..][..part.len()].copy_from_slice(part),
                )?)
            }
            Operation::Flush { pool, key } => {
                Outcome::Flushed(u64::from(self.store.flush(PoolId(pool.0), *key)))
            }
            Operation::FlushObject { pool, object } => {
                Outcome::Flushed(self.store.flush_object(PoolId(pool.0), *object))
            }
            Operation::Exists { pool, key } => {
                Outcome::Exists(self.store.exists(PoolId(pool.0), *key))
            }
        })
    }

    fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.store.statistics(self.client)?)
    }
}
