//! Stores values.

mod place;

use spillway_tiers::sync::{Guard, Ordering};
use spillway_tiers::{PageBuf, WRITE_PAGES_MAX, expect_write, uniform_word};
use spillway_types::{Key, PAGE_BYTES, PoolId, Put, Refusal, VALUE_BYTES_MAX, billed_pages};

use crate::flushed::Flushed;
use crate::index::Index;
use crate::pool::Access;
use crate::position::HandlePosition;
use crate::samplers::Use;
use crate::scratch::{Packer, Scratch};
use crate::slot::{PREPAID, Slot, ValueLocation};
use crate::store::Store;
pub(crate) use place::Placed;
use place::TRIES_MAX;

/// Free frames that are released when the index can't grow: each of its three arrays may need a
/// page, and the root's shard too.
const INDEX_ROOM_FRAMES: usize = 8;

/// The lane from which a task on this core takes frames. The frames that it frees are mostly from
/// the same lane, so cores rarely share one.
pub(crate) fn lane() -> usize {
    rustix::thread::sched_getcpu()
}

/// A page in its frame, not published yet. Dropping it frees the page.
#[derive(Debug)]
pub struct Filled<'a> {
    store: &'a Store,
    pool: PoolId,
    access: Access,
    at: HandlePosition,
    frame: u32,
    lane: usize,
}

impl Filled<'_> {
    /// The second half of [`Store::put_page`]: from now on the page is the value under its key.
    #[inline]
    pub fn publish(self) -> Put {
        let Self { store, pool, access, at, frame, lane } = *core::mem::ManuallyDrop::new(self);
        let place = store.keep_filled(lane, frame);
        store.tell(access, &at, Use::Put);
        let slot = Slot::new(place, access.payer()).with_listed(true);
        store.publish_or_refuse(pool, access, &at, (slot, 0), lane, None)
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        self.store.arena.release(self.frame);
    }
}

impl Store {
    /// Stores `value`, 1 byte to 16 MiB, under `key`, in place of what was there. A refusal is a
    /// normal answer, after which nothing is stored under the key.
    ///
    /// The value is stored as it is, by one copy; a page filled with one word takes no memory.
    pub fn put(&self, pool: PoolId, key: Key, value: &[u8]) -> Put {
        let put = self.put_with(pool, key, value.len(), None, |access, lane, scratch| {
            self.try_place(access, lane, value, scratch.map(|scratch| &mut scratch.packer))
        });
        if value.len() == PAGE_BYTES {
            self.expect_put();
        }
        put
    }

    /// Announces that this core may put a page next: prefetches the memory that it will write.
    #[inline]
    pub fn expect_put(&self) {
        self.arena.expect_at_hand(lane());
    }

    /// Like [`Store::put`] of a page that `fill` writes, where it will lie if that is possible: into a
    /// frame, or else into `buffer`. For pages in memory that others may change at any time. `fill`
    /// may be called more than once; the last call counts.
    pub fn put_page(
        &self,
        pool: PoolId,
        key: Key,
        buffer: &mut PageBuf,
        mut fill: impl FnMut(&mut [u8; PAGE_BYTES]),
    ) -> Put {
        self.put_with(pool, key, PAGE_BYTES, None, |access, lane, scratch| {
            if access.is_reserved() || self.domain(access).is_some() || scratch.is_some() {
                fill(&mut buffer.0);
                let packer = scratch.map(|scratch| &mut scratch.packer);
                return self.try_place(access, lane, &buffer.0, packer);
            }
            let Some(frame) = self.arena.store_page(lane, &mut fill) else {
                // A page filled with one word needs none.
                fill(&mut buffer.0);
                let word = uniform_word(&buffer.0)?;
                self.uniform_pages.fetch_add(1, Ordering::Relaxed);
                return Some(ValueLocation::Uniform { word }.into());
            };
            Some(self.keep_filled(lane, frame).into())
        })
    }

    /// Like [`Store::put`] of a value longer than a page that `fill` writes where it will lie, part by part.
    /// For values in memory that others may change. `fill` may be called more than once for a part; the last
    /// call counts.
    pub fn put_long(
        &self,
        pool: PoolId,
        key: Key,
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Put {
        debug_assert!(length > PAGE_BYTES, "shorter ones are put in one piece");
        self.put_with(pool, key, length, None, |access, lane, _| {
            let cell = self.large().store(lane, self.domain(access), length, &mut fill)?;
            Some(ValueLocation::Large { cell }.into())
        })
    }

    /// The place of a page that was written to a frame: no frame, if it is filled with one word.
    #[inline]
    fn keep_filled(&self, lane: usize, frame: u32) -> ValueLocation {
        let Some(word) = uniform_word(self.arena.content(frame)) else {
            return ValueLocation::Raw { frame, length: PAGE_BYTES as u16, incompressible: false };
        };
        self.arena.release_at_hand(lane, frame);
        self.uniform_pages.fetch_add(1, Ordering::Relaxed);
        ValueLocation::Uniform { word }
    }

    /// Like [`Store::put`], but packs a page with LZ4 if that saves at least a quarter of it, which
    /// takes some microseconds. For background tasks.
    pub fn put_compressed(
        &self,
        pool: PoolId,
        key: Key,
        value: &[u8],
        scratch: &mut Scratch,
    ) -> Put {
        self.put_with(pool, key, value.len(), Some(scratch), |access, lane, scratch| {
            self.try_place(access, lane, value, scratch.map(|scratch| &mut scratch.packer))
        })
    }

    /// Like [`Store::put_compressed`], but writes nothing to a lower tier to make room. For latency-sensitive
    /// callers.
    pub fn put_packed(&self, pool: PoolId, key: Key, value: &[u8], packer: &mut Packer) -> Put {
        self.put_with(pool, key, value.len(), None, |access, lane, _| {
            self.try_place(access, lane, value, Some(packer))
        })
    }

    /// Stores a value of `length` bytes that `copy` copies to its place. It gives none when memory is
    /// out, and is then asked again when there is some.
    fn put_with(
        &self,
        pool: PoolId,
        key: Key,
        length: usize,
        mut scratch: Option<&mut Scratch>,
        copy: impl FnMut(Access, usize, Option<&mut Scratch>) -> Option<Placed>,
    ) -> Put {
        let Some(access) = self.access(pool) else { return Put::Refused(Refusal::NoPool) };
        let at = HandlePosition::new(access.pool, key, self.seed);
        self.tell(access, &at, Use::Put);
        let most = if access.is_reserved() { PAGE_BYTES } else { VALUE_BYTES_MAX };
        if length == 0 || length > most {
            return self.refuse(pool, access, &at, Refusal::Length);
        }
        let client = &self.clients[usize::from(access.client)];
        if client.frozen.load(Ordering::Acquire) != 0 {
            return self.refuse(pool, access, &at, Refusal::Frozen);
        }
        let pages = billed_pages(length);
        if !self.has_room(pool, access, &at, pages) {
            return self.refuse(pool, access, &at, Refusal::AtTarget);
        }
        self.expect_change(access, &at);
        let lane = lane();
        let placed = self.place(access, lane, pages, scratch.as_deref_mut(), copy);
        let Some(Placed { place, shared }) = placed else {
            return self.refuse(pool, access, &at, Refusal::NodeFull);
        };
        let slot = Slot::new(place, access.payer()).with_listed(!shared && !access.is_reserved());
        let counters = self.client_shard(access.client, at.shard);
        self.expect_youngest(counters, slot, access.ephemeral);
        self.publish_or_refuse(pool, access, &at, (slot, 0), lane, scratch)
    }

    /// Publishes a filled slot, some of whose pages are charged already, as the value of its handle, or frees it.
    /// Callers with scratch memory make room for the entry as for the value.
    pub(crate) fn publish_or_refuse(
        &self,
        pool: PoolId,
        access: Access,
        at: &HandlePosition,
        (slot, paid): (Slot, u64),
        lane: usize,
        mut scratch: Option<&mut Scratch>,
    ) -> Put {
        let mut published = self.publish(pool, access, at, (slot, paid), lane);
        for _ in 0..TRIES_MAX {
            // Without room for the entry: frames make room for the index.
            let full = published == Err(Refusal::NodeFull);
            let mut makes_room = || {
                let by_caller =
                    |scratch: &mut Scratch| self.page_out(WRITE_PAGES_MAX, scratch) != 0;
                self.arena.hollow_out(INDEX_ROOM_FRAMES) != 0
                    || self.evict(access.client)
                    || self.make_room(INDEX_ROOM_FRAMES as u64)
                    || scratch.as_deref_mut().is_some_and(by_caller)
            };
            if !full || !makes_room() {
                break;
            }
            published = self.publish(pool, access, at, (slot, paid), lane);
        }
        match published {
            Ok(()) => Put::Stored,
            Err(reason) => {
                self.free_place(slot);
                self.refuse(pool, access, at, reason)
            }
        }
    }

    /// The first half of [`Store::put_page`]: `fill` writes a page to its frame, where nobody finds it
    /// before [`Filled::publish`]. For callers that put several pages: publishing uses atomic
    /// instructions, each of which stalls on the copies before it. `None` if the page can't be put in
    /// two steps; nothing was filled then.
    #[inline]
    pub fn fill_page(
        &self,
        pool: PoolId,
        key: Key,
        fill: impl FnOnce(&mut [u8; PAGE_BYTES]),
    ) -> Option<Filled<'_>> {
        let access = self.access(pool)?;
        let client = &self.clients[usize::from(access.client)];
        if access.is_reserved() || self.domain(access).is_some() || !client.has_room(1) {
            return None;
        }
        let at = HandlePosition::new(access.pool, key, self.seed);
        self.expect_change(access, &at);
        let lane = lane();
        let frame = self.arena.store_page(lane, fill)?;
        Some(Filled { store: self, pool, access, at, frame, lane })
    }

    /// Prefetches lines that a put writes and that other cores have written, while the value is
    /// copied.
    fn expect_change(&self, access: Access, at: &HandlePosition) {
        expect_write(&self.shards[at.shard]);
        let counters = self.client_shard(access.client, at.shard);
        expect_write(counters);
        expect_write(&counters.lists);
    }

    /// Whether a value of `pages` fits, before it is copied. Nothing is charged yet: what is known
    /// only when the value is published, that it replaces another, saves two writes to a word that
    /// all of the client's threads share. [`Self::publish`] has the last word.
    fn has_room(&self, pool: PoolId, access: Access, at: &HandlePosition, pages: u64) -> bool {
        if access.is_reserved() {
            return self.is_prepaid(pool, at);
        }
        let client = &self.clients[usize::from(access.client)];
        if client.has_room(pages) {
            return true;
        }
        let held = self.held_pages(pool, access, at);
        held != 0 && (held >= pages || client.has_room(pages - held))
    }

    /// Pages charged to the client for a handle now.
    pub(crate) fn held_pages(&self, pool: PoolId, access: Access, at: &HandlePosition) -> u64 {
        let index = self.shards[at.shard].lock();
        match self.find(&index, at) {
            Some((_, slot)) if self.pools.is_live(pool) && slot.owner() == access.client => {
                self.pages_of(slot)
            }
            _ => 0,
        }
    }

    /// Makes a filled slot the value of its handle, and lists it if it is marked so. What was there
    /// before is freed. Of the value's pages, `paid` are charged already: that is settled if it succeeds.
    fn publish(
        &self,
        pool: PoolId,
        access: Access,
        at: &HandlePosition,
        (slot, paid): (Slot, u64),
        lane: usize,
    ) -> Result<(), Refusal> {
        let pages = self.pages_of(slot);
        let payer = access.payer();
        let client = &self.clients[usize::from(access.client)];
        let (mut index, leaf) = self.lock_leaf(at)?;
        let old = index.slot(leaf, at.index);
        let old_pages = self.pages_of(old);
        // Pages are taken over from the value that is replaced, if the same client paid for it.
        let taken_over = if old.owner() == payer { old_pages.min(pages) } else { 0 };
        let more = if payer == PREPAID { 0 } else { pages - taken_over };
        let due = more.saturating_sub(paid);
        let verdict = if !self.pools.is_live(pool) {
            Err(Refusal::NoPool)
        } else if client.frozen.load(Ordering::Acquire) != 0 {
            Err(Refusal::Frozen)
        } else if due != 0 && !client.charge(due) {
            Err(Refusal::AtTarget)
        } else if !index.set(leaf, at.index, slot, self.budget()) {
            client.refund(due);
            Err(Refusal::NodeFull)
        } else {
            Ok(())
        };
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
        client.refund(paid.saturating_sub(more));
        self.unlist(old, at.shard, access.ephemeral);
        if slot.listed() {
            let listed = self.list(slot, at.shard, leaf, at.index, access.ephemeral);
            let kept = index.set(leaf, at.index, listed, self.budget());
            debug_assert!(kept, "changing a used slot takes no memory");
        }
        let counters = self.client_shard(access.client, at.shard);
        counters.puts.add_guarded(1);
        counters.puts_stored.add_guarded(1);
        if pages != old_pages {
            self.pool_shard(access.pool, at.shard).add_guarded(pages.wrapping_sub(old_pages));
        }
        drop(index);
        if !old.is_empty() {
            self.refund(old.owner(), old_pages - taken_over);
            self.note_unshared(old);
            match old.place() {
                ValueLocation::Raw { frame, .. } => self.arena.release_at_hand(lane, frame),
                _ => self.free_place(old),
            }
        }
        Ok(())
    }

    /// Locks the shard of a handle, with a leaf for it there.
    fn lock_leaf(&self, at: &HandlePosition) -> Result<(Guard<'_, Index>, u32), Refusal> {
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
            if index.find(at.leaf_key, at.hash).is_some() {
                // Another put created the leaf meanwhile, and registered it with the root.
                drop(index);
                self.leave_root(at.leaf_key.pool, at.leaf_key.object);
                return self.lock_leaf(at);
            }
        }
        if let Some(leaf) = index.insert(at.leaf_key, at.hash, at.index, self.budget()) {
            return Ok((index, leaf));
        }
        drop(index);
        if rooted {
            self.leave_root(at.leaf_key.pool, at.leaf_key.object);
        }
        Err(Refusal::NodeFull)
    }

    /// Refuses a put: removes the old value, and counts the refusal.
    #[cold]
    pub(crate) fn refuse(
        &self,
        pool: PoolId,
        access: Access,
        at: &HandlePosition,
        reason: Refusal,
    ) -> Put {
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
            let owner = self.client_shard(access.counted(slot.owner()), at.shard);
            owner.flushed_pages.add_guarded(self.pages_of(slot));
            let key = Key::new(at.leaf_key.object, at.index);
            self.log_flush(access.client, Flushed::Page(pool, key));
            self.remove(&mut index, at.shard, leaf, at.index, access.ephemeral)
        });
        drop(index);
        if let Some(removed) = removed {
            self.finish(removed);
        }
        Put::Refused(reason)
    }
}
