//! Lists the keys of a pool, a few at a time.
//!
//! The order is that of the store's hash: shard by shard, then by the reversed bits of the low half
//! of a leaf's hash. A bucket of linear hashing holds one range of these reversed numbers, and
//! splitting it cuts the range in two. So the order does not change as the index grows, a key alone
//! is enough to continue, and a call scans only the buckets that it lists.

use spillway_tiers::sync::Ordering;
use spillway_types::{Key, PoolId};

use crate::error::Error;
use crate::index::{Index, LEAF_SHIFT, LEAF_SLOTS, LeafKey};
use crate::position::{HandlePosition, SHARDS};
use crate::store::Store;

/// Buckets scanned under one lock of a shard.
const LOCKED_BUCKETS: usize = 256;

/// The position of a leaf in the order, within its shard.
type LeafOrder = (u32, u64, u32);

fn place_of(key: LeafKey, hash: u64) -> LeafOrder {
    ((hash as u32).reverse_bits(), key.object, key.chunk)
}

impl Store {
    /// Lists keys of a pool into `keys`, beginning with `from` if that key has a value, else with
    /// the next. `None` begins at the first. Returns how many were listed; fewer than fit in `keys`
    /// means that there are no more.
    ///
    /// The order is the store's own, and never changes. A caller that continues from the last key,
    /// and skips it, gets each key that has a value throughout exactly once.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn list_keys(
        &self,
        pool: PoolId,
        from: Option<Key>,
        keys: &mut [Key],
    ) -> Result<usize, Error> {
        let access = self.access(pool).ok_or(Error::NoPool)?;
        let mut listed = 0;
        let mut start =
            from.map(|key| (HandlePosition::new(access.pool, key, self.seed), key.index));
        let first_shard = start.map_or(0, |(at, _)| at.shard);
        for shard in first_shard..SHARDS {
            let from = start.take().map(|(at, index)| (place_of(at.leaf_key, at.hash), index));
            listed += self.list_shard(pool, access.pool, shard, from, &mut keys[listed..])?;
            if listed == keys.len() {
                break;
            }
        }
        Ok(listed)
    }

    fn list_shard(
        &self,
        pool: PoolId,
        number: u16,
        shard: usize,
        from: Option<(LeafOrder, u32)>,
        keys: &mut [Key],
    ) -> Result<usize, Error> {
        if self.pool_shard(number, shard).load(Ordering::Relaxed) == 0 {
            return Ok(0);
        }
        let mut listed = 0;
        let mut next = Some(from.map_or(0, |(place, _)| place.0));
        let mut leaves = Vec::new();
        while let Some(first) = next {
            let index = self.shards[shard].lock();
            if !self.pools.is_live(pool) {
                return Err(Error::NoPool);
            }
            next = Some(first);
            for _ in 0..LOCKED_BUCKETS {
                let Some(first) = next else { break };
                next = index.leaves_of_bucket(first, number, &mut leaves);
                leaves.retain(|&(_, key, hash)| {
                    from.is_none_or(|(place, _)| place_of(key, hash) >= place)
                });
                leaves.sort_unstable_by_key(|&(_, key, hash)| place_of(key, hash));
                for (leaf, key, hash) in leaves.drain(..) {
                    let skip = match from {
                        Some((place, index)) if place == place_of(key, hash) => {
                            index % LEAF_SLOTS as u32
                        }
                        _ => 0,
                    };
                    let room = &mut keys[listed..];
                    listed += list_leaf(&index, leaf, key, skip, room);
                    if listed == keys.len() {
                        return Ok(listed);
                    }
                }
            }
        }
        Ok(listed)
    }
}

/// Lists the keys of a leaf from place `skip` on.
fn list_leaf(index: &Index, leaf: u32, name: LeafKey, skip: u32, keys: &mut [Key]) -> usize {
    let used = (skip..LEAF_SLOTS as u32).filter(|&place| !index.slot(leaf, place).is_empty());
    let mut listed = 0;
    for (place, key) in used.zip(keys) {
        *key = Key::new(name.object, name.chunk << LEAF_SHIFT | place);
        listed += 1;
    }
    listed
}
