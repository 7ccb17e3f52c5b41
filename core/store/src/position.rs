//! Where a handle lies: in which shard of the index, which leaf and which slot.

use spillway_types::Key;

use crate::index::LeafKey;
use crate::slot::Slot;

/// Shards of a store.
pub(crate) const SHARDS: usize = 32;

/// Capacity from which all shards are used. In a smaller store their memory would be significant.
const ALL_SHARDS_BYTES: u64 = 128 << 20;
/// Shards that are used below it.
const FEW_SHARDS: usize = 8;

/// How many shards a store of this capacity uses: the first ones.
pub(crate) const fn shards_used(capacity_bytes: u64) -> usize {
    if capacity_bytes < ALL_SHARDS_BYTES { FEW_SHARDS } else { SHARDS }
}

/// The parameters for locating a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed {
    /// Secret that keeps clients from choosing keys that collide.
    pub(crate) secret: u64,
    /// One less than the shards that are used.
    pub(crate) shard_mask: usize,
}

/// The location of a handle, computed once for each operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandlePosition {
    pub(crate) leaf_key: LeafKey,
    pub(crate) hash: u64,
    pub(crate) shard: usize,
    pub(crate) index: u32,
}

impl HandlePosition {
    pub(crate) fn of_leaf(leaf_key: LeafKey, index: u32, seed: Seed) -> Self {
        let hash = leaf_key.hash(seed.secret);
        let shard = (hash >> (u64::BITS - SHARDS.ilog2())) as usize & seed.shard_mask;
        Self { leaf_key, hash, shard, index }
    }

    pub(crate) fn new(pool: u16, key: Key, seed: Seed) -> Self {
        Self::of_leaf(LeafKey::of(pool, key), key.index, seed)
    }

    pub(crate) fn root(pool: u16, object: u64, seed: Seed) -> Self {
        Self::of_leaf(LeafKey::root(pool, object), 0, seed)
    }
}

/// A value removed from the index, to be freed after the lock.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Removed {
    pub(crate) slot: Slot,
    /// Set if the leaf was also removed and its object has a root to update.
    pub(crate) leaf: Option<LeafKey>,
}
