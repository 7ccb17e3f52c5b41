//! The index of one shard: from (pool, object, index) to a slot.
//!
//! 64 neighbouring indexes of an object share a *leaf* of 32 bytes, found by linear hashing
//! (W. Litwin, 1980), which grows by one bucket at a time. A leaf's slots, 8 bytes each, lie in a
//! run that covers the smallest aligned range of 1, 2, 4 to 64 indexes that holds all that were
//! used; a run of one lies in the leaf itself. So a dense object costs 8.6 bytes an entry, and an
//! object of a single page about 40.
//!
//! Leaves and runs are sufficient to restore the index; the buckets and free lists are derived from
//! them ([`restore`]). So every change takes effect with the store of one word, see [`commit`]: a
//! slot, or the head of a leaf.

mod leaf;
pub(crate) mod restore;

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::Arc;

use spillway_tiers::{Budget, GrowArray, NONE, Region, Use};

use crate::slot::Slot;
use leaf::{Head, Leaf};
pub(crate) use leaf::{LeafKey, Root};

/// Indexes of a leaf, as a shift.
pub(crate) const LEAF_SHIFT: u32 = 6;
/// Indexes of a leaf.
pub(crate) const LEAF_SLOTS: usize = 1 << LEAF_SHIFT;
const SLOTS: u32 = LEAF_SLOTS as u32;
/// The chunk number of an object's root, which holds no slots; see [`Root`].
pub(crate) const ROOT_CHUNK: u32 = u32::MAX;
/// Leaves of a shard: a back reference has 26 bits for the leaf and 6 for the place in it.
const LEAVES_MAX: usize = 1 << 26;

/// Changes a word that is meaningful to the process that takes over the memory if this one is
/// killed. All earlier writes of the thread come before it, and all later ones after it. Only the
/// compiler must be prevented from reordering: the effects of a killed process are those of its
/// executed instructions, and its memory is coherent. (The index is behind a lock, so these are
/// core's atomics, which loom need not explore.)
#[inline(always)]
fn commit(word: &AtomicU64, value: u64) {
    compiler_fence(Ordering::SeqCst);
    word.store(value, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// The index of a shard, and the memory of its slots. Guarded by the shard's lock.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Index {
    /// Buckets in use. The fields that a lookup reads come first, in the cache lines of the lock.
    bucket_count: u32,
    buckets: GrowArray<u32>,
    leaves: GrowArray<Leaf>,
    runs: GrowArray<AtomicU64>,
    leaf_free: u32,
    /// Leaves ever created, including number 0. Also recorded in leaf 0.
    leaf_high: u32,
    leaf_live: u32,
    run_free: [u32; LEAF_SHIFT as usize + 1],
    run_high: u32,
    seed: u64,
}

impl Index {
    /// Bytes of address space of `count` indexes, each with room for `bytes_max` of leaves and as
    /// much of slots.
    pub(crate) fn bytes_for(count: usize, bytes_max: usize) -> usize {
        let (leaves, slots) = Self::room(bytes_max);
        let leaf_bytes = GrowArray::<Leaf>::bytes_for(leaves);
        let bucket_bytes = GrowArray::<u32>::bytes_for(leaves);
        count * (leaf_bytes + bucket_bytes + GrowArray::<AtomicU64>::bytes_for(slots))
    }

    /// Leaves and slots that an index has room for.
    fn room(bytes_max: usize) -> (usize, usize) {
        let leaves = (bytes_max / size_of::<Leaf>()).clamp(LEAF_SLOTS, LEAVES_MAX);
        (leaves, (bytes_max / size_of::<u64>()).min(NONE as usize))
    }

    /// `count` empty indexes in a region of [`Self::bytes_for`] bytes.
    pub(crate) fn open(
        region: &Arc<Region>,
        count: usize,
        bytes_max: usize,
        seed: u64,
    ) -> Vec<Self> {
        let (leaves, slots) = Self::room(bytes_max);
        let mut next = 0;
        let part = |_| Self::within(region, &mut next, leaves, slots, seed);
        (0..count).map(part).collect()
    }

    fn within(
        region: &Arc<Region>,
        next: &mut usize,
        leaves: usize,
        slots: usize,
        seed: u64,
    ) -> Self {
        Self {
            leaves: GrowArray::within(region, next, leaves),
            buckets: GrowArray::within(region, next, leaves),
            runs: GrowArray::within(region, next, slots),
            bucket_count: 0,
            leaf_free: NONE,
            leaf_high: 1,
            leaf_live: 0,
            run_free: [NONE; LEAF_SHIFT as usize + 1],
            run_high: 0,
            seed,
        }
    }

    /// The leaf of `key`, whose hash is given.
    #[inline]
    pub(crate) fn find(&self, key: LeafKey, hash: u64) -> Option<u32> {
        if self.bucket_count == 0 {
            return None;
        }
        let mut at = *self.buckets.get(bucket(hash, self.bucket_count) as usize);
        // Buckets hold the leaf's number plus one, so that zeroed memory is an empty bucket.
        while at != 0 {
            let leaf = self.leaves.get(at as usize - 1);
            if leaf.object == key.object
                && leaf.chunk == key.chunk
                && leaf.head().pool() == key.pool
            {
                return Some(at - 1);
            }
            at = leaf.next;
        }
        None
    }

    /// The slot for `index` of a leaf.
    #[inline]
    pub(crate) fn slot(&self, leaf: u32, index: u32) -> Slot {
        let leaf = self.leaves.get(leaf as usize);
        let head = leaf.head();
        let offset = (index % SLOTS).wrapping_sub(head.base());
        if offset >> head.order() != 0 {
            return Slot::EMPTY;
        }
        Slot(self.word(leaf, head, offset).load(Ordering::Relaxed))
    }

    /// Which places of a leaf are in use, as bits.
    pub(crate) fn used(&self, leaf: u32) -> u64 {
        let leaf = self.leaves.get(leaf as usize);
        let head = leaf.head();
        let in_use = |offset: u32| self.word(leaf, head, offset).load(Ordering::Relaxed) != 0;
        let offsets = (0..1 << head.order()).filter(|&offset| in_use(offset));
        offsets.fold(0, |bits, offset| bits | 1 << (head.base() + offset))
    }

    /// The word of a slot that a leaf's run covers.
    #[inline(always)]
    fn word<'a>(&'a self, leaf: &'a Leaf, head: Head, offset: u32) -> &'a AtomicU64 {
        if head.order() == 0 {
            &leaf.slot
        } else {
            self.runs.get(head.run() as usize + offset as usize)
        }
    }

    /// Sets the slot for `index` of a leaf; false if there is no memory for it. Clearing a slot,
    /// and changing one in use, always succeed.
    #[must_use]
    pub(crate) fn set(&mut self, leaf: u32, index: u32, slot: Slot, budget: &Budget) -> bool {
        let place = index % SLOTS;
        let mut head = self.leaves.get(leaf as usize).head();
        if place.wrapping_sub(head.base()) >> head.order() != 0 {
            if !self.widen(leaf, place, budget) {
                return false;
            }
            head = self.leaves.get(leaf as usize).head();
        }
        let entry = self.leaves.get(leaf as usize);
        let word = self.word(entry, head, place - head.base());
        let before = Slot(word.load(Ordering::Relaxed));
        commit(word, slot.0);
        if before.is_empty() != slot.is_empty() {
            let live = if slot.is_empty() { head.live() - 1 } else { head.live() + 1 };
            entry.head.store(head.with_live(live).0, Ordering::Relaxed);
        }
        true
    }

    /// Extends the run of a leaf to cover `place`.
    fn widen(&mut self, leaf: u32, place: u32, budget: &Budget) -> bool {
        let head = self.leaves.get(leaf as usize).head();
        let (base, order) = (head.base(), head.order());
        // The smallest aligned range around both.
        let wide = (u32::BITS - (base ^ place).leading_zeros()).max(order + 1);
        let wide_base = base >> wide << wide;
        let Some(run) = self.take_run(wide, budget) else { return false };
        let entry = self.leaves.get(leaf as usize);
        for offset in 0..1 << wide {
            // Before the old base this wraps around, and so also lies beyond its end.
            let old = (wide_base + offset).wrapping_sub(base);
            let slot = if old >> order == 0 {
                self.word(entry, head, old).load(Ordering::Relaxed)
            } else {
                0
            };
            self.runs.get((run + offset) as usize).store(slot, Ordering::Relaxed);
        }
        let wider = Head::new(head.pool(), wide_base, wide, run, head.live());
        commit(&entry.head, wider.0);
        if order != 0 {
            self.free_run(head.run(), order);
        }
        true
    }

    /// Creates a leaf whose first use will be at `index`.
    pub(crate) fn insert(
        &mut self,
        key: LeafKey,
        hash: u64,
        index: u32,
        budget: &Budget,
    ) -> Option<u32> {
        if self.bucket_count == 0 {
            if !self.buckets.grow(1, budget, Use::Index) {
                return None;
            }
            self.bucket_count = 1;
        }
        let at = if self.leaf_free == NONE {
            let at = self.leaf_high;
            if at as usize >= LEAVES_MAX || !self.leaves.grow(at as usize + 1, budget, Use::Index) {
                return None;
            }
            self.leaf_high += 1;
            self.leaves.get(0).slot.store(self.leaf_high.into(), Ordering::Relaxed);
            at
        } else {
            let at = self.leaf_free;
            self.leaf_free = self.leaves.get(at as usize).next;
            at
        };
        let bucket = self.buckets.get_mut(bucket(hash, self.bucket_count) as usize);
        let next = core::mem::replace(bucket, at + 1);
        let entry = self.leaves.get_mut(at as usize);
        entry.object = key.object;
        entry.slot.store(0, Ordering::Relaxed);
        entry.chunk = key.chunk;
        entry.next = next;
        commit(&entry.head, Head::new(key.pool, index % SLOTS, 0, 0, 0).0);
        self.leaf_live += 1;
        // Without memory for more buckets, the chains only get longer.
        if self.leaf_live > self.bucket_count
            && self.buckets.grow(self.bucket_count as usize + 1, budget, Use::Index)
        {
            self.split();
        }
        Some(at)
    }

    /// Adds a bucket, and moves its leaves to it.
    fn split(&mut self) {
        let new = self.bucket_count;
        let old = new - (1 << new.ilog2());
        self.bucket_count += 1;
        let mut at = core::mem::take(self.buckets.get_mut(old as usize));
        while at != 0 {
            let key = self.key(at - 1);
            let next = self.leaves.get(at as usize - 1).next;
            let target = bucket(key.hash(self.seed), self.bucket_count);
            let head = core::mem::replace(self.buckets.get_mut(target as usize), at);
            self.leaves.get_mut(at as usize - 1).next = head;
            at = next;
        }
    }

    /// Whether no slot of the leaf is in use.
    pub(crate) fn is_unused(&self, leaf: u32) -> bool {
        self.leaves.get(leaf as usize).head().live() == 0
    }

    /// Creates a leaf for the first `count` of its indexes. It stays even if no slot of it is in
    /// use, until [`Self::let_go`], so that setting these slots never takes memory.
    pub(crate) fn insert_kept(
        &mut self,
        key: LeafKey,
        hash: u64,
        count: u32,
        budget: &Budget,
    ) -> Option<u32> {
        let leaf = self.insert(key, hash, 0, budget)?;
        if count > 1 && !self.widen(leaf, count - 1, budget) {
            self.remove(leaf);
            return None;
        }
        let head = &self.leaves.get(leaf as usize).head;
        head.fetch_add(Head::new(0, 0, 0, 0, 1).0, Ordering::Relaxed);
        Some(leaf)
    }

    /// Removes a kept leaf that has no used slots.
    pub(crate) fn let_go(&mut self, leaf: u32) {
        debug_assert_eq!(self.leaves.get(leaf as usize).head().live(), 1);
        self.remove(leaf);
    }

    /// Removes a leaf without used slots.
    pub(crate) fn remove(&mut self, leaf: u32) {
        let entry = self.leaves.get(leaf as usize);
        let (next, removed) = (entry.next, entry.head());
        let hash = self.key(leaf).hash(self.seed);
        commit(&entry.head, Head::FREE.0);
        let head = bucket(hash, self.bucket_count) as usize;
        let mut at = *self.buckets.get(head);
        if at == leaf + 1 {
            *self.buckets.get_mut(head) = next;
        } else {
            while self.leaves.get(at as usize - 1).next != leaf + 1 {
                at = self.leaves.get(at as usize - 1).next;
            }
            self.leaves.get_mut(at as usize - 1).next = next;
        }
        if removed.order() != 0 {
            self.free_run(removed.run(), removed.order());
        }
        self.free_leaf(leaf);
        self.leaf_live -= 1;
    }

    /// Adds the leaves of `pool` in the bucket that reversed hash `first` falls into to `found`, with
    /// their numbers, names and hashes. Returns the reversed hash at which the next bucket begins.
    pub(crate) fn leaves_of_bucket(
        &self,
        first: u32,
        pool: u16,
        found: &mut Vec<(u32, LeafKey, u64)>,
    ) -> Option<u32> {
        if self.bucket_count == 0 {
            return None;
        }
        let number = bucket(u64::from(first.reverse_bits()), self.bucket_count);
        let mut at = *self.buckets.get(number as usize);
        while at != 0 {
            let leaf = at - 1;
            if self.is_of(leaf, pool) {
                let key = self.key(leaf);
                found.push((leaf, key, key.hash(self.seed)));
            }
            at = self.leaves.get(leaf as usize).next;
        }
        // One more bit distinguishes a split bucket from its twin.
        let level = self.bucket_count.ilog2();
        let split = number | 1 << level;
        let bits = level + u32::from(split < self.bucket_count || number >= 1 << level);
        let step = 1_u64 << (u32::BITS - bits);
        let next = (u64::from(first) & !(step - 1)) + step;
        u32::try_from(next).ok()
    }

    /// Puts a leaf on the free list.
    fn free_leaf(&mut self, leaf: u32) {
        let next = core::mem::replace(&mut self.leaf_free, leaf);
        self.leaves.get_mut(leaf as usize).next = next;
    }

    /// Leaves ever created: numbers below this may be in use.
    pub(crate) const fn leaf_high(&self) -> u32 {
        self.leaf_high
    }

    /// Leaves in use.
    pub(crate) const fn leaf_live(&self) -> u32 {
        self.leaf_live
    }

    /// Whether the leaf of this number is in use.
    pub(crate) fn is_live(&self, leaf: u32) -> bool {
        leaf != 0 && self.leaves.get(leaf as usize).head() != Head::FREE
    }

    /// Whether the leaf of this number is in use for values of `pool`.
    pub(crate) fn is_of(&self, leaf: u32, pool: u16) -> bool {
        if leaf == 0 {
            return false;
        }
        let leaf = self.leaves.get(leaf as usize);
        leaf.head().pool() == pool && leaf.chunk != ROOT_CHUNK
    }

    /// The name of a leaf.
    pub(crate) fn key(&self, leaf: u32) -> LeafKey {
        let leaf = self.leaves.get(leaf as usize);
        LeafKey { object: leaf.object, chunk: leaf.chunk, pool: leaf.head().pool() }
    }

    /// The contents of a root leaf.
    pub(crate) fn root(&self, leaf: u32) -> Root {
        Root::from_bits(self.leaves.get(leaf as usize).slot.load(Ordering::Relaxed))
    }

    /// Changes a root leaf.
    pub(crate) fn set_root(&mut self, leaf: u32, root: Root) {
        self.leaves.get(leaf as usize).slot.store(root.bits(), Ordering::Relaxed);
    }

    fn take_run(&mut self, order: u32, budget: &Budget) -> Option<u32> {
        let found = (order..=LEAF_SHIFT).find(|&o| self.run_free[o as usize] != NONE);
        let (run, mut have) = if let Some(have) = found {
            let run = self.run_free[have as usize];
            self.run_free[have as usize] =
                self.runs.get(run as usize).load(Ordering::Relaxed) as u32;
            (run, have)
        } else {
            let run = self.run_high;
            if !self.runs.grow((run + SLOTS) as usize, budget, Use::Index) {
                return None;
            }
            self.run_high += SLOTS;
            (run, LEAF_SHIFT)
        };
        while have > order {
            have -= 1;
            self.free_run(run + (1 << have), have);
        }
        Some(run)
    }

    fn free_run(&mut self, run: u32, order: u32) {
        let next = core::mem::replace(&mut self.run_free[order as usize], run);
        self.runs.get(run as usize).store(next.into(), Ordering::Relaxed);
    }
}

/// The bucket of a hash among `count` buckets, by linear hashing.
#[inline]
const fn bucket(hash: u64, count: u32) -> u32 {
    let level = count.ilog2();
    let wide = hash as u32 & ((1u64 << (level + 1)) - 1) as u32;
    if wide < count { wide } else { wide & ((1 << level) - 1) }
}
