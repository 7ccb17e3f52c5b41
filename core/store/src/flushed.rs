//! Removals that are noted for a client that moves.

use spillway_types::{Key, PoolId};

/// A removal while a client is frozen. Repeating it is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// One value, flushed or lost by a refused put.
    Page(PoolId, Key),
    /// All values of an object.
    Object(PoolId, u64),
    /// All values of a pool.
    Pool(PoolId),
}
