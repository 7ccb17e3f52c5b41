//! Storing a value.

use spillway_tiers::sync::{Guard, Ordering};
use spillway_tiers::uniform_word;
use spillway_types::{Key, PAGE_BYTES, PoolId, Put, Refusal, VALUE_BYTES_MAX, billed_pages};

use crate::index::Index;
use crate::pools::Access;
use crate::scratch::Scratch;
use crate::shard::Position;
use crate::slot::{Place, Slot};
use crate::store::Store;

impl Store {
    /// Stores `value`, 1 byte to 16 MiB, under `key`, in place of what was there. A refusal is a
    /// normal answer, after which nothing is stored under the key.
    ///
    /// The value is stored as it is, by one copy; a page filled with one word takes no memory.
    pub fn put(&self, pool: PoolId, key: Key, value: &[u8]) -> Put {
        self.put_with(pool, key, value, None)
    }

    /// Like [`Store::put`], but packs a page with LZ4 if that saves at least a quarter of it, which
    /// takes some microseconds. For callers that nobody waits for.
    pub fn put_compressed(
        &self,
        pool: PoolId,
        key: Key,
        value: &[u8],
        scratch: &mut Scratch,
    ) -> Put {
        self.put_with(pool, key, value, Some(scratch))
    }

    fn put_with(&self, pool: PoolId, key: Key, value: &[u8], scratch: Option<&mut Scratch>) -> Put {
        let Some(access) = self.access(pool) else { return Put::Refused(Refusal::NoPool) };
        let at = Position::new(access.pool, key, self.seed);
        if value.is_empty() || value.len() > VALUE_BYTES_MAX {
            return self.refuse(pool, access, &at, Refusal::Length);
        }
        let client = &self.clients[usize::from(access.client)];
        let pages = billed_pages(value.len());
        let charged = if client.charge(pages) { pages } else { 0 };
        // At the target a value may still take the place of one that is no smaller.
        if charged == 0 && self.held_pages(pool, access, &at) < pages {
            return self.refuse(pool, access, &at, Refusal::AtTarget);
        }
        let Some(place) = self.place(access, at.shard, value, scratch) else {
            client.refund(charged);
            return self.refuse(pool, access, &at, Refusal::NodeFull);
        };
        let slot = Slot::new(place, access.client);
        match self.publish(pool, access, &at, slot, pages, charged) {
            Ok(()) => Put::Stored,
            Err(reason) => {
                self.free_place(slot);
                client.refund(charged);
                self.refuse(pool, access, &at, reason)
            }
        }
    }

    /// Pages that the client is billed for under a handle now.
    fn held_pages(&self, pool: PoolId, access: Access, at: &Position) -> u64 {
        let index = self.shards[at.shard].lock();
        match self.find(&index, at) {
            Some((_, slot)) if self.pools.is_live(pool) && slot.owner() == access.client => {
                self.pages_of(slot)
            }
            _ => 0,
        }
    }

    /// Copies a value to where it will lie. `None` when memory is out.
    fn place(
        &self,
        access: Access,
        lane: usize,
        value: &[u8],
        scratch: Option<&mut Scratch>,
    ) -> Option<Place> {
        if let Ok(page) = <&[u8; PAGE_BYTES]>::try_from(value) {
            if let Some(word) = uniform_word(page) {
                self.uniform_pages.fetch_add(1, Ordering::Relaxed);
                return Some(Place::Uniform { word });
            }
            let _ = scratch;
            let tag = self.clients[usize::from(access.client)].tag();
            return self.arena.store(lane, tag, page).map(|frame| Place::Raw { frame });
        }
        None
    }

    /// Makes a filled slot the value of its handle. What was there before is freed.
    fn publish(
        &self,
        pool: PoolId,
        access: Access,
        at: &Position,
        slot: Slot,
        pages: u64,
        charged: u64,
    ) -> Result<(), Refusal> {
        let client = &self.clients[usize::from(access.client)];
        let (mut index, leaf) = self.lock_leaf(at)?;
        let old = index.slot(leaf, at.index);
        let verdict = if !self.pools.is_live(pool) {
            Err(Refusal::NoPool)
        } else if client.frozen.load(Ordering::Acquire) != 0 {
            Err(Refusal::Frozen)
        } else {
            Ok(())
        };
        let old_pages = if old.is_empty() { 0 } else { self.pages_of(old) };
        let own_pages = if old.owner() == access.client { old_pages } else { 0 };
        let missing = pages - charged;
        let verdict = verdict.and_then(|()| {
            if missing <= own_pages || client.charge(missing) {
                Ok(())
            } else {
                Err(Refusal::AtTarget)
            }
        });
        let verdict = verdict.and_then(|()| {
            let listed = self.list(slot, at.shard, leaf, at.index, access.ephemeral);
            if index.set(leaf, at.index, listed, self.arena.budget()) {
                return Ok(());
            }
            self.unlist(listed, at.shard, access.ephemeral);
            if missing > own_pages {
                client.refund(missing);
            }
            Err(Refusal::NodeFull)
        });
        if let Err(reason) = verdict {
            let unused = index.is_unused(leaf);
            if unused {
                index.remove(leaf);
            }
            drop(index);
            if unused && at.leaf_key.chunk != 0 {
                self.leave_root(at.leaf_key.pool, at.leaf_key.object);
            }
            return Err(reason);
        }
        self.unlist(old, at.shard, access.ephemeral);
        let counters = self.client_shard(access.client, at.shard);
        counters.puts.add_guarded(1);
        counters.puts_stored.add_guarded(1);
        drop(index);
        if !old.is_empty() {
            let kept = if missing != 0 && missing <= own_pages { missing } else { 0 };
            self.clients[usize::from(old.owner())].refund(old_pages - kept);
            self.free_place(old);
        }
        Ok(())
    }

    /// Locks the shard of a handle, with a leaf for it there.
    fn lock_leaf(&self, at: &Position) -> Result<(Guard<'_, Index>, u32), Refusal> {
        let mut index = self.shards[at.shard].lock();
        if let Some(leaf) = index.find(at.leaf_key, at.hash) {
            return Ok((index, leaf));
        }
        let rooted = at.leaf_key.chunk != 0;
        if rooted {
            // The root lies in another shard, and no two shards are ever locked at once.
            drop(index);
            if !self.join_root(at.leaf_key) {
                return Err(Refusal::NodeFull);
            }
            index = self.shards[at.shard].lock();
            if let Some(leaf) = index.find(at.leaf_key, at.hash) {
                drop(index);
                // Another put made the leaf meanwhile, and has told the root of it.
                self.leave_root(at.leaf_key.pool, at.leaf_key.object);
                let _ = leaf;
                return self.lock_leaf(at);
            }
        }
        if let Some(leaf) = index.insert(at.leaf_key, at.hash, at.index, self.arena.budget()) {
            return Ok((index, leaf));
        }
        drop(index);
        if rooted {
            self.leave_root(at.leaf_key.pool, at.leaf_key.object);
        }
        Err(Refusal::NodeFull)
    }

    /// Refuses a put: the old value goes, and the refusal is counted.
    #[cold]
    fn refuse(&self, pool: PoolId, access: Access, at: &Position, reason: Refusal) -> Put {
        let mut index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return Put::Refused(Refusal::NoPool);
        }
        let counters = self.client_shard(access.client, at.shard);
        counters.puts.add_guarded(1);
        match reason {
            Refusal::AtTarget => counters.puts_at_target.add_guarded(1),
            Refusal::NodeFull => counters.puts_node_full.add_guarded(1),
            _ => counters.puts_other.add_guarded(1),
        }
        let found = self.find(&index, at);
        let removed = found.map(|(leaf, slot)| {
            let owner = self.client_shard(slot.owner(), at.shard);
            owner.flushed_pages.add_guarded(self.pages_of(slot));
            self.remove(&mut index, at.shard, leaf, at.index, access.ephemeral)
        });
        drop(index);
        if let Some(removed) = removed {
            self.finish(removed);
        }
        Put::Refused(reason)
    }
}
