//! Removing values, and asking whether they are there.

use spillway_types::{Key, PoolId};

use crate::index::{LEAF_SHIFT, LeafKey};
use crate::pools::Access;
use crate::shard::{Position, SHARDS};
use crate::slot::Slot;
use crate::store::Store;

impl Store {
    /// Removes a value; whether there was one.
    pub fn flush(&self, pool: PoolId, key: Key) -> bool {
        let Some(access) = self.access(pool) else { return false };
        let at = Position::new(access.pool, key, self.seed);
        let mut index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return false;
        }
        let Some((leaf, slot)) = self.find(&index, &at) else { return false };
        let counters = self.client_shard(slot.owner(), at.shard);
        counters.flushed_pages.add_guarded(self.pages_of(slot));
        let removed = self.remove(&mut index, at.shard, leaf, at.index, access.ephemeral);
        drop(index);
        self.finish(removed);
        true
    }

    /// Removes all values of an object; the pages that were freed.
    pub fn flush_object(&self, pool: PoolId, object: u64) -> u64 {
        let Some(access) = self.access(pool) else { return 0 };
        let first = LeafKey { object, chunk: 0, pool: access.pool };
        let mut pages = self.flush_leaf(pool, access, first);
        let root = Position::root(access.pool, object, self.seed);
        let index = self.shards[root.shard].lock();
        let found = index.find(root.leaf_key, root.hash).map(|leaf| index.root(leaf));
        drop(index);
        let Some(found) = found else { return pages };
        let live: u64 = self.shards.iter().map(|s| u64::from(s.lock().leaf_live())).sum();
        if u64::from(found.chunk_max) <= live {
            for chunk in 1..=found.chunk_max {
                pages += self.flush_leaf(pool, access, LeafKey { chunk, ..first });
            }
            return pages;
        }
        // A few leaves far apart: going through all there are is shorter.
        for shard in 0..SHARDS {
            let mut leaf = 0;
            loop {
                let index = self.shards[shard].lock();
                if leaf >= index.leaf_high() {
                    break;
                }
                let live = index.is_live(leaf).then(|| index.key(leaf));
                drop(index);
                leaf += 1;
                if let Some(key) = live
                    && key.object == object
                    && key.pool == access.pool
                    && key.chunk <= u32::MAX >> LEAF_SHIFT
                {
                    pages += self.flush_leaf(pool, access, key);
                }
            }
        }
        pages
    }

    /// Removes all values of a leaf; the pages that were freed.
    fn flush_leaf(&self, pool: PoolId, access: Access, key: LeafKey) -> u64 {
        let at = Position::of_leaf(key, 0, self.seed);
        let mut pages = 0;
        let mut index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return 0;
        }
        let Some(leaf) = index.find(key, at.hash) else { return 0 };
        let mut removed = [const { None }; 1 << LEAF_SHIFT];
        for place in 0..1 << LEAF_SHIFT {
            if index.slot(leaf, place) == Slot::EMPTY {
                continue;
            }
            let gone = self.remove(&mut index, at.shard, leaf, place, access.ephemeral);
            let leaf_gone = gone.leaf.is_some() || !index.is_live(leaf);
            removed[place as usize] = Some(gone);
            if leaf_gone {
                break;
            }
        }
        drop(index);
        for gone in removed.into_iter().flatten() {
            let owner = gone.slot.owner();
            let freed = self.finish(gone);
            self.count_flushed(owner, at.shard, freed);
            pages += freed;
        }
        pages
    }

    /// Counts flushed pages outside of the shard's lock.
    pub(crate) fn count_flushed(&self, owner: u16, shard: usize, pages: u64) {
        let _index = self.shards[shard].lock();
        self.client_shard(owner, shard).flushed_pages.add_guarded(pages);
    }

    /// Whether a value is stored under `key`. It may be gone the next moment.
    pub fn exists(&self, pool: PoolId, key: Key) -> bool {
        let Some(access) = self.access(pool) else { return false };
        let at = Position::new(access.pool, key, self.seed);
        let index = self.shards[at.shard].lock();
        self.pools.is_live(pool) && self.find(&index, &at).is_some()
    }
}
