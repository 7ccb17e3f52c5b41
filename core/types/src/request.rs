//! The request type of all frontends.

use crate::{ClientId, Get, Key, PoolId, PoolSpec, Put, Statistics};

/// One request to a page store. A batch is a slice of these.
#[derive(Debug)]
pub enum Request<'a> {
    /// Store a value.
    Put {
        /// The pool.
        pool: PoolId,
        /// The key.
        key: Key,
        /// The bytes, 1 to [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX).
        value: &'a [u8],
    },
    /// Copy a value out.
    Get {
        /// The pool.
        pool: PoolId,
        /// The key.
        key: Key,
        /// Buffer for the bytes.
        value: &'a mut [u8],
    },
    /// Remove one value.
    FlushPage {
        /// The pool.
        pool: PoolId,
        /// The key.
        key: Key,
    },
    /// Remove all values of an object.
    FlushObject {
        /// The pool.
        pool: PoolId,
        /// The object.
        object: u64,
    },
    /// Check whether a value exists.
    Exists {
        /// The pool.
        pool: PoolId,
        /// The key.
        key: Key,
    },
    /// Create a pool; join a shared pool that exists already.
    CreatePool {
        /// The client that owns the pool.
        client: ClientId,
        /// The kind of the pool.
        spec: PoolSpec,
    },
    /// Join a shared pool that exists.
    JoinPool {
        /// The client.
        client: ClientId,
        /// The pool's UUID.
        uuid: u128,
    },
    /// Free a private pool with its values.
    DestroyPool {
        /// The pool.
        pool: PoolId,
    },
    /// Leave a shared pool.
    LeavePool {
        /// The pool, by the id that the client got when it joined.
        pool: PoolId,
    },
    /// Read a client's counters.
    Statistics {
        /// The client.
        client: ClientId,
    },
}

/// The answer to a [`Request`], with the store's own error type.
#[derive(Debug)]
pub enum Answer<E> {
    /// To a put.
    Put(Put),
    /// To a get.
    Get(Get),
    /// To a flush: pages freed. 0 is as normal as any other number.
    Flushed(u64),
    /// To exists.
    Exists(bool),
    /// To the creation or joining of a pool.
    Pool(PoolId),
    /// To the destruction or leaving of a pool.
    Destroyed,
    /// To statistics.
    Statistics(Statistics),
    /// The request failed.
    Failed(E),
}
