//! The interface of every store, whatever the transport.

use std::time::Instant;

use spillway_types::{Get, Key, PoolSpec, Put, Statistics};

use crate::Error;

/// A pool's handle. It is valid only for the store that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool(pub u64);

/// A pool of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// The pool.
    pub pool: Pool,
    /// Its kind.
    pub spec: PoolSpec,
    /// Pages charged for its values.
    pub pages: u64,
    /// Distinguishes it from every other pool of any store, at any time.
    pub identity: u128,
}

/// One request about values.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Store a value, and replace the key's former one.
    Put {
        /// The pool.
        pool: Pool,
        /// The key.
        key: Key,
        /// The bytes, 1 to [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX).
        value: &'a [u8],
    },
    /// Copy a value out.
    Get {
        /// The pool.
        pool: Pool,
        /// The key.
        key: Key,
        /// The buffer.
        value: &'a mut [u8],
    },
    /// Copy a value out and remove it, in one step.
    Take {
        /// The pool.
        pool: Pool,
        /// The key.
        key: Key,
        /// The buffer.
        value: &'a mut [u8],
    },
    /// Remove a value.
    Flush {
        /// The pool.
        pool: Pool,
        /// The key.
        key: Key,
    },
    /// Remove all values of an object.
    FlushObject {
        /// The pool.
        pool: Pool,
        /// The object.
        object: u64,
    },
    /// Check whether a value exists.
    Exists {
        /// The pool.
        pool: Pool,
        /// The key.
        key: Key,
    },
}

impl Operation<'_> {
    /// Its pool.
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

/// The outcome of an [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a put.
    Put(Put),
    /// Of a get or a take.
    Get(Get),
    /// Of a flush: the number of values (flush) or pages (flush object) removed.
    Flushed(u64),
    /// Of exists.
    Exists(bool),
}

/// A page store. All calls block until they are answered, and may be made from any number of threads.
///
/// A refused put and a miss are answers, not errors. After an error of a put the value under its key
/// is unknown, but a later get never returns wrong bytes.
pub trait Store: Send + Sync {
    /// Creates a pool. Joins a shared pool that exists already.
    ///
    /// # Errors
    /// [`Error::Unauthorised`], [`Error::Lifetime`], [`Error::Full`], and errors of the connection.
    fn open_pool(&self, spec: PoolSpec) -> Result<Pool, Error>;

    /// Joins the shared pool of `uuid`.
    ///
    /// # Errors
    /// [`Error::Unauthorised`], [`Error::NoSharedPool`], [`Error::Full`], and errors of the
    /// connection.
    fn join_pool(&self, uuid: u128) -> Result<Pool, Error>;

    /// Destroys a private pool with its values, or leaves a shared one.
    ///
    /// # Errors
    /// [`Error::NoPool`], and errors of the connection.
    fn close_pool(&self, pool: Pool) -> Result<(), Error>;

    /// The pools of this client, also those that other connections of it opened.
    ///
    /// # Errors
    /// Errors of the connection.
    fn pools(&self) -> Result<Vec<PoolInfo>, Error>;

    /// At most `most` keys of a pool, beginning with `from` if that key has a value; `None` begins at
    /// the first key. Fewer than `most` means that there are no more. The order is the store's own. A
    /// caller that continues from the last key, and skips it, gets each key that has a value throughout
    /// exactly once.
    ///
    /// # Errors
    /// [`Error::NoPool`], and errors of the connection.
    fn list(&self, pool: Pool, from: Option<Key>, most: usize) -> Result<Vec<Key>, Error>;

    /// Executes one operation.
    ///
    /// # Errors
    /// [`Error::NoPool`], [`Error::Length`], [`Error::Corrupt`], and errors of the connection.
    fn execute(&self, operation: &mut Operation<'_>) -> Result<Outcome, Error>;

    /// Executes operations in no particular order, many at a time if the transport allows. Clears
    /// `outcomes`, which then has the outcome of each operation at its index.
    fn batch(&self, operations: &mut [Operation<'_>], outcomes: &mut Vec<Result<Outcome, Error>>) {
        outcomes.clear();
        outcomes.extend(operations.iter_mut().map(|operation| self.execute(operation)));
    }

    /// [`Self::batch`] that sends no more operations once it is `until`. Those that it has not sent have
    /// [`Error::Timeout`], and no effect; then it returns false.
    fn batch_until(
        &self,
        operations: &mut [Operation<'_>],
        outcomes: &mut Vec<Result<Outcome, Error>>,
        until: Instant,
    ) -> bool {
        outcomes.clear();
        let mut sent_all = true;
        outcomes.extend(operations.iter_mut().map(|operation| {
            sent_all &= Instant::now() < until;
            if sent_all { self.execute(operation) } else { Err(Error::Timeout) }
        }));
        sent_all
    }

    /// The counters of this client, over all its connections.
    ///
    /// # Errors
    /// Errors of the connection.
    fn statistics(&self) -> Result<Statistics, Error>;

    /// Puts a value of 1 byte to 16 MiB, and replaces the key's former one. After a refusal the key
    /// has no value.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn put(&self, pool: Pool, key: Key, value: &[u8]) -> Result<Put, Error> {
        match self.execute(&mut Operation::Put { pool, key, value })? {
            Outcome::Put(put) => Ok(put),
            _ => Err(Error::Protocol("a put was answered as something else")),
        }
    }

    /// Copies a value out. Copies nothing if `value` is too short. A get removes the value from a
    /// private ephemeral pool.
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

    /// Removes a value; returns whether there was one.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn flush(&self, pool: Pool, key: Key) -> Result<bool, Error> {
        match self.execute(&mut Operation::Flush { pool, key })? {
            Outcome::Flushed(values) => Ok(values != 0),
            _ => Err(Error::Protocol("a flush was answered as something else")),
        }
    }

    /// Removes all values of an object; returns the number of pages freed.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    fn flush_object(&self, pool: Pool, object: u64) -> Result<u64, Error> {
        match self.execute(&mut Operation::FlushObject { pool, object })? {
            Outcome::Flushed(pages) => Ok(pages),
            _ => Err(Error::Protocol("a flush was answered as something else")),
        }
    }

    /// Whether the key has a value. It may be gone a moment later.
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
