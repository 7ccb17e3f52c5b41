//! One part of the index, and the changes made to it under its lock.

use spillway_tiers::sync::{Guard, Ordering};
use spillway_tiers::{NONE, expect_write};
use spillway_types::billed_pages;

use crate::client::ClientShard;
use crate::index::{Index, LEAF_SHIFT, LEAF_SLOTS, LeafKey, ROOT_CHUNK, Root};
use crate::list::List;
use crate::position::{HandlePosition, Removed, SHARDS};
use crate::slot::{PREPAID, Slot, ValueLocation};
use crate::store::Store;

impl Store {
    pub(crate) fn client_shard(&self, owner: u16, shard: usize) -> &ClientShard {
        self.client_shards.get(usize::from(owner) * SHARDS + shard)
    }

    /// The slot of a handle, and the leaf it lies in.
    #[inline]
    pub(crate) fn find(&self, index: &Index, at: &HandlePosition) -> Option<(u32, Slot)> {
        let leaf = index.find(at.leaf_key, at.hash)?;
        let slot = index.slot(leaf, at.index);
        (!slot.is_empty()).then_some((leaf, slot))
    }

    /// Fetches what [`Self::list`] will write to besides the shard's own, from whichever core has it.
    pub(crate) fn expect_youngest(&self, shard: &ClientShard, slot: Slot, ephemeral: bool) {
        if let Some((list, _)) = List::of(slot.place(), ephemeral) {
            let youngest = shard.lists[list as usize].youngest.load(Ordering::Relaxed);
            if youngest != NONE && list.is_frames() {
                expect_write(self.arena.meta(youngest));
            }
        }
    }

    /// Puts the value of a slot on its list, as the youngest. Returns the slot with its mark.
    pub(crate) fn list(
        &self,
        slot: Slot,
        shard: usize,
        leaf: u32,
        index: u32,
        ephemeral: bool,
    ) -> Slot {
        let Some((list, at)) = List::of(slot.place(), ephemeral) else {
            return slot.with_listed(false);
        };
        let back = (leaf << LEAF_SHIFT) | (index % LEAF_SLOTS as u32);
        let stamp = self.tick(ephemeral);
        if ephemeral {
            self.ephemeral_values.fetch_add(1, Ordering::Relaxed);
        }
        self.chains().push(self.client_shard(slot.owner(), shard), list, at, back, stamp);
        slot.with_listed(true)
    }

    /// Removes the value of a slot from its list.
    pub(crate) fn unlist(&self, slot: Slot, shard: usize, ephemeral: bool) {
        if !slot.listed() {
            return;
        }
        if let Some((list, at)) = List::of(slot.place(), ephemeral) {
            if ephemeral {
                self.ephemeral_values.fetch_sub(1, Ordering::Relaxed);
            }
            self.chains().unlink(self.client_shard(slot.owner(), shard), list, at);
        }
    }

    /// Removes a used slot from the index, and its leaf if this was the last slot.
    pub(crate) fn remove(
        &self,
        index: &mut Index,
        shard: usize,
        leaf: u32,
        at: u32,
        ephemeral: bool,
    ) -> Removed {
        let slot = index.slot(leaf, at);
        self.unlist(slot, shard, ephemeral);
        let pages = self.pool_shard(index.key(leaf).pool, shard);
        pages.add_guarded(self.pages_of(slot).wrapping_neg());
        let cleared = index.set(leaf, at, Slot::EMPTY, self.budget());
        debug_assert!(cleared, "clearing a used slot takes no memory");
        let mut removed = Removed { slot, leaf: None };
        if index.is_unused(leaf) {
            let key = index.key(leaf);
            index.remove(leaf);
            removed.leaf = (key.chunk != 0).then_some(key);
        }
        removed
    }

    /// Frees a removed value. Returns the number of pages freed.
    pub(crate) fn finish(&self, removed: Removed) -> u64 {
        let pages = self.leave(removed);
        self.free_place(removed.slot);
        pages
    }

    /// Refunds the owner of a removed value, and updates the root; keeps the reference to the
    /// value. Returns the number of pages.
    pub(crate) fn leave(&self, removed: Removed) -> u64 {
        if let Some(leaf) = removed.leaf {
            self.leave_root(leaf.pool, leaf.object);
        }
        let pages = self.pages_of(removed.slot);
        self.refund(removed.slot.owner(), pages);
        pages
    }

    /// Refunds pages to the owner of a slot.
    pub(crate) fn refund(&self, payer: u16, pages: u64) {
        if payer != PREPAID {
            self.clients[usize::from(payer)].refund(pages);
        }
    }

    /// Pages charged for a slot's value.
    pub(crate) fn pages_of(&self, slot: Slot) -> u64 {
        if slot.is_empty() { 0 } else { billed_pages(self.length(slot)) }
    }

    /// Drops a slot's reference to its value.
    pub(crate) fn free_place(&self, slot: Slot) {
        match slot.place() {
            ValueLocation::Empty => {}
            ValueLocation::Raw { frame, .. } => self.arena.release(frame),
            ValueLocation::Small { cell, length } => {
                self.cells.release(&self.arena, cell, usize::from(length));
            }
            ValueLocation::Packed { cell, length } => {
                self.packed_pages.fetch_sub(1, Ordering::Relaxed);
                self.cells.release(&self.arena, cell, usize::from(length));
            }
            ValueLocation::Uniform { .. } => {
                self.uniform_pages.fetch_sub(1, Ordering::Relaxed);
            }
            ValueLocation::Large { cell } => self.large().release(cell),
            ValueLocation::Disk { file, slot } => {
                if let Some(files) = &self.files {
                    files.free(file, slot);
                }
            }
            ValueLocation::Blade(place) => {
                if let Some(blade) = &self.blade {
                    blade.free(place);
                }
            }
        }
    }

    /// Adds a leaf to an object's root, before the leaf exists. False without memory.
    #[must_use]
    pub(crate) fn join_root(&self, leaf: LeafKey) -> bool {
        debug_assert_ne!(leaf.chunk, ROOT_CHUNK);
        let at = HandlePosition::root(leaf.pool, leaf.object, self.seed);
        let mut index = self.shards[at.shard].lock();
        let root = match index.find(at.leaf_key, at.hash) {
            Some(root) => root,
            None => {
                let Some(root) = index.insert(at.leaf_key, at.hash, 0, self.budget()) else {
                    return false;
                };
                index.set_root(root, Root { leaves: 0, chunk_max: 0 });
                root
            }
        };
        let Root { leaves, chunk_max } = index.root(root);
        index.set_root(root, Root { leaves: leaves + 1, chunk_max: chunk_max.max(leaf.chunk) });
        true
    }

    /// Removes a leaf from an object's root.
    pub(crate) fn leave_root(&self, pool: u16, object: u64) {
        let at = HandlePosition::root(pool, object, self.seed);
        let mut index: Guard<'_, Index> = self.shards[at.shard].lock();
        let Some(root) = index.find(at.leaf_key, at.hash) else { return };
        let Root { leaves, chunk_max } = index.root(root);
        if leaves == 1 {
            index.remove(root);
        } else {
            index.set_root(root, Root { leaves: leaves - 1, chunk_max });
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_types::{Key, PoolSpec, Put, Refusal};

    use super::{HandlePosition, SHARDS};
    use crate::ClientConfig;
    use crate::config::Config;
    use crate::position::Seed;
    use crate::store::Store;

    /// A small store keeps its index in fewer shards.
    #[test]
    fn keys_lie_in_the_shards_that_are_used() {
        for used in [1, 4, SHARDS] {
            let seed = Seed { secret: 7, shard_mask: used - 1 };
            let shard = |object| HandlePosition::new(3, Key::new(object, 0), seed).shard;
            let mut seen = vec![false; used];
            (0..10_000).for_each(|object| seen[shard(object)] = true);
            assert!(seen.iter().all(|&seen| seen), "{used} shards");
        }
    }

    /// An object has a root as long as it has leaves beyond the first.
    #[test]
    fn a_root_goes_with_the_last_of_its_leaves() {
        let store = Store::open(Config::embedded(8 << 20)).expect("open");
        let client = store.add_client(ClientConfig::default()).expect("client");
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
        let leaves =
            || store.shards.iter().map(|shard| u64::from(shard.lock().leaf_live())).sum::<u64>();
        let put = |index| assert_eq!(store.put(pool, Key::new(3, index), b"here"), Put::Stored);
        let flush = |index| assert!(store.flush(pool, Key::new(3, index)));
        put(0);
        assert_eq!(leaves(), 1, "the first leaf needs no root");
        put(100);
        put(101);
        put(1000);
        assert_eq!(leaves(), 4, "three leaves and a root");
        flush(1000);
        flush(100);
        assert_eq!(leaves(), 3, "the second leaf has a page still");
        flush(101);
        assert_eq!(leaves(), 1);
        put(500);
        flush(0);
        assert_eq!(store.flush_object(pool, 3), 1);
        assert_eq!(leaves(), 0);
    }

    #[test]
    fn a_put_that_is_refused_last_takes_its_leaf_and_no_other_from_the_root() {
        let store = Store::open(Config::embedded(8 << 20)).expect("open");
        let client = store.add_client(ClientConfig::default()).expect("client");
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
        let leaves =
            || store.shards.iter().map(|shard| u64::from(shard.lock().leaf_live())).sum::<u64>();
        let refuse = |index| {
            let filled = store.fill_page(pool, Key::new(3, index), |page| page.fill(7));
            store.set_target(client, 0).expect("target");
            let put = filled.expect("room").publish();
            assert_eq!(put, Put::Refused(Refusal::AtTarget));
            store.set_target(client, u64::MAX).expect("target");
        };
        refuse(100);
        assert_eq!(leaves(), 0, "neither leaf nor root");
        assert_eq!(store.put(pool, Key::new(3, 1000), b"here"), Put::Stored);
        refuse(100);
        refuse(0);
        assert_eq!(leaves(), 2, "one leaf and its root");
        assert_eq!(store.flush_object(pool, 3), 1);
    }
}
