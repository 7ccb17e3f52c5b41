//! What every store can be asked, however it is reached.

use spillway_types::{Get, Key, PoolSpec, Put, Statistics};

use crate::Error;

/// A pool, as the store that gave it knows it. It means nothing to another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool(pub u64);

/// A pool of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// The pool.
    pub pool: Pool,
    /// Of what kind it is.
    pub spec: PoolSpec,
    /// Pages that its values are billed as.
    pub pages: u64,
    /// Tells it from every other pool that there was or will be, in any store.
    pub identity: u128,
}

/// One request about values.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Store a value in place of what is under the key.
    Put {
        /// Where.
        pool: Pool,
        /// Under which key.
        key: Key,
        /// The bytes, 1 to [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX).
        value: &'a [u8],
    },
    /// Copy a value out.
    Get {
        /// Where.
        pool: Pool,
        /// Under which key.
        key: Key,
        /// Takes the bytes.
        value: &'a mut [u8],
    },
    /// Copy a value out and remove it, in one step.
    Take {
        /// Where.
        pool: Pool,
        /// Under which key.
        key: Key,
        /// Takes the bytes.
        value: &'a mut [u8],
    },
    /// Remove a value.
    Flush {
        /// Where.
        pool: Pool,
        /// Under which key.
        key: Key,
    },
    /// Remove all values of an object.
    FlushObject {
        /// Where.
        pool: Pool,
        /// Which object.
        object: u64,
    },
    /// Ask whether a value is there.
    Exists {
        /// Where.
        pool: Pool,
        /// Under which key.
        key: Key,
    },
}

impl Operation<'_> {
    /// The pool that it is about.
    pub const fn pool(&self) -> Pool {
        match self {
            Self::Put { pool, .. }
            | Self::Get { pool, .. }
            | Self::Take { pool, .. }
            | Self::Flush { pool, .. }
            | Self::FlushObject { pool, .. }
            | Self::Exists { pool, .. } => *pool,
        }
    }
}

/// What came of an [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a put.
    Put(Put),
    /// Of a get or a take.
    Get(Get),
    /// Of a flush: the values (flush) or pages (flush object) that went.
    Flushed(u64),
    /// Of exists.
    Exists(bool),
}

/// A page store. All calls block until they are answered, and may be made from any number of threads.
///
/// A refused put and a miss are answers, not errors. After an error of a put nothing is known of the
/// value under its key, but that a later get never gives wrong bytes.
pub trait Store: Send + Sync {
    /// Makes a pool. A shared pool that is there already is joined.
    ///
    /// # Errors
    /// [`Error::Unauthorised`], [`Error::Lifetime`], [`Error::Full`], and those of the way to the store.
    fn open_pool(&self, spec: PoolSpec) -> Result<Pool, Error>;

    /// Joins the shared pool of `uuid`.
    ///
    /// # Errors
    /// [`Error::Unauthorised`], [`Error::NoSharedPool`], [`Error::Full`], and those of the way to the
    /// store.
    fn join_pool(&self, uuid: u128) -> Result<Pool, Error>;

    /// Destroys a private pool with its values, or leaves a shared one.
    ///
    /// # Errors
    /// [`Error::NoPool`], and those of the way to the store.
    fn close_pool(&self, pool: Pool) -> Result<(), Error>;

    /// The pools of this client, also those that other connections of it opened.
    ///
    /// # Errors
    /// Those of the way to the store.
    fn pools(&self) -> Result<Vec<PoolInfo>, Error>;

    /// At most `most` keys of a pool, from `from` on (that key too, if it has a value); `None` begins
    /// at the first. Fewer than `most` means that there are no more. The order is the store's own; a
    /// key that has a value all the while is listed exactly once by a caller that goes on from the last
    /// key it got, and passes over that one.
    ///
    /// # Errors
    /// [`Error::NoPool`], and those of the way to the store.
    fn list(&self, pool: Pool, from: Option<Key>, most: usize) -> Result<Vec<Key>, Error>;

    /// Carries one operation out.
    ///
    /// # Errors
    /// [`Error::NoPool`], [`Error::Length`], [`Error::Corrupt`], and those of the way to the store.
    fn execute(&self, operation: &mut Operation<'_>) -> Result<Outcome, Error>;

    /// Carries operations out, many at a time where the way to the store allows, in no particular
    /// order. `outcomes` is emptied, and then has the outcome of each in its place.
    fn batch(&self, operations: &mut [Operation<'_>], outcomes: &mut Vec<Result<Outcome, Error>>) {
        outcomes.clear();
        outcomes.extend(operations.iter_mut().map(|operation| self.execute(operation)));
    }

    /// The counters of this client, over all its connections.
    ///
    /// # Errors
    /// Those of the way to the store.
    fn statistics(&self) -> Result<Statistics, Error>;

    /// Puts a value, 1 byte to 16 MiB, in place of what is under the key. After a refusal nothing is
    /// under it.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn put(&self, pool: Pool, key: Key, value: &[u8]) -> Result<Put, Error> {
        match self.execute(&mut Operation::Put { pool, key, value })? {
            Outcome::Put(put) => Ok(put),
            _ => Err(Error::Protocol("a put was answered as something else")),
        }
    }

    /// Copies a value out. When `value` is too short for it, nothing is copied. Private ephemeral pools
    /// lose a value that is got.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn get(&self, pool: Pool, key: Key, value: &mut [u8]) -> Result<Get, Error> {
        match self.execute(&mut Operation::Get { pool, key, value })? {
            Outcome::Get(get) => Ok(get),
            _ => Err(Error::Protocol("a get was answered as something else")),
        }
    }

    /// Copies a value out and removes it, in one step.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn take(&self, pool: Pool, key: Key, value: &mut [u8]) -> Result<Get, Error> {
        match self.execute(&mut Operation::Take { pool, key, value })? {
            Outcome::Get(get) => Ok(get),
            _ => Err(Error::Protocol("a take was answered as something else")),
        }
    }

    /// Removes a value; whether there was one.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn flush(&self, pool: Pool, key: Key) -> Result<bool, Error> {
        match self.execute(&mut Operation::Flush { pool, key })? {
            Outcome::Flushed(values) => Ok(values != 0),
            _ => Err(Error::Protocol("a flush was answered as something else")),
        }
    }

    /// Removes all values of an object; the pages that this freed.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn flush_object(&self, pool: Pool, object: u64) -> Result<u64, Error> {
        match self.execute(&mut Operation::FlushObject { pool, object })? {
            Outcome::Flushed(pages) => Ok(pages),
            _ => Err(Error::Protocol("a flush was answered as something else")),
        }
    }

    /// Whether a value is under the key. It may be gone the next moment.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn exists(&self, pool: Pool, key: Key) -> Result<bool, Error> {
        match self.execute(&mut Operation::Exists { pool, key })? {
            Outcome::Exists(there) => Ok(there),
            _ => Err(Error::Protocol("exists was answered as something else")),
        }
    }
}
