//! Removes values, and checks for their existence.

use spillway_types::{Key, PoolId};

use crate::flushed::Flushed;
use crate::index::{LEAF_SLOTS, LeafKey, ROOT_CHUNK};
use crate::pool::Access;
use crate::position::{HandlePosition, SHARDS};
use crate::samplers::Use;
use crate::store::Store;

impl Store {
    /// Removes a value; returns whether there was one.
    pub fn flush(&self, pool: PoolId, key: Key) -> bool {
        let Some(access) = self.access(pool) else { return false };
        let at = HandlePosition::new(access.pool, key, self.seed);
        self.tell(access, &at, Use::Flush);
        let mut index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return false;
        }
        let Some((leaf, slot)) = self.find(&index, &at) else { return false };
        let counters = self.client_shard(access.counted(slot.owner()), at.shard);
        counters.flushed_pages.add_guarded(self.pages_of(slot));
        let removed = self.remove(&mut index, at.shard, leaf, at.index, access.ephemeral);
        self.log_flush(access.client, Flushed::Page(pool, key));
        drop(index);
        self.finish(removed);
        true
    }

    /// Removes all values of an object; returns the number of pages freed.
    pub fn flush_object(&self, pool: PoolId, object: u64) -> u64 {
        let Some(access) = self.access(pool) else { return 0 };
        self.log_flush(access.client, Flushed::Object(pool, object));
        let first = LeafKey { object, chunk: 0, pool: access.pool };
        let mut pages = self.flush_leaf(pool, access, first);
        let root = HandlePosition::root(access.pool, object, self.seed);
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
        // A few leaves far apart: a scan of all leaves is faster.
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
                    && key.chunk != ROOT_CHUNK
                {
                    pages += self.flush_leaf(pool, access, key);
                }
            }
        }
        pages
    }

    /// Removes all values of a leaf; returns the number of pages freed.
    fn flush_leaf(&self, pool: PoolId, access: Access, key: LeafKey) -> u64 {
        let at = HandlePosition::of_leaf(key, 0, self.seed);
        let mut index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return 0;
        }
        let Some(leaf) = index.find(key, at.hash) else { return 0 };
        let mut removed = [const { None }; LEAF_SLOTS];
        for (place, removed) in removed.iter_mut().enumerate() {
            // The leaf is removed with its last slot.
            if !index.is_live(leaf) {
                break;
            }
            let slot = index.slot(leaf, place as u32);
            self.tell(access, &HandlePosition { index: place as u32, ..at }, Use::Flush);
            if !slot.is_empty() {
                let counters = self.client_shard(access.counted(slot.owner()), at.shard);
                counters.flushed_pages.add_guarded(self.pages_of(slot));
                let gone = self.remove(&mut index, at.shard, leaf, place as u32, access.ephemeral);
                *removed = Some(gone);
            }
        }
        drop(index);
        removed.into_iter().flatten().map(|gone| self.finish(gone)).sum()
    }

    /// Whether a value is stored under `key`. It may be gone the next moment.
    pub fn exists(&self, pool: PoolId, key: Key) -> bool {
        let Some(access) = self.access(pool) else { return false };
        let at = HandlePosition::new(access.pool, key, self.seed);
        let index = self.shards[at.shard].lock();
        self.pools.is_live(pool) && self.find(&index, &at).is_some()
    }
}
