//! The index of one shard: from (pool, object, index) to a slot.
//!
//! 64 neighbouring indexes of an object share a *leaf* of 32 bytes, found by linear hashing
//! (W. Litwin, 1980), which grows by one bucket at a time. A leaf's slots, 8 bytes each, lie in a
//! run that covers the smallest aligned range of 1, 2, 4 to 64 indexes that holds all that were
//! used; a run of one lies in the leaf itself. So a dense object costs 8.6 bytes an entry, and an
//! object of a single page about 40.

use std::io;
use std::sync::Arc;

use spillway_tiers::{Backing, Budget, GrowArray, NONE, Region, Use, Zeroed};
use spillway_types::Key;

use crate::slot::Slot;

/// Indexes of a leaf, as a shift.
pub(crate) const LEAF_SHIFT: u32 = 6;
/// Indexes of a leaf.
pub(crate) const LEAF_SLOTS: usize = 1 << LEAF_SHIFT;
const SLOTS: u32 = LEAF_SLOTS as u32;
/// The chunk number of an object's root, which holds no slots; see [`Root`].
pub(crate) const ROOT_CHUNK: u32 = u32::MAX;
/// Leaves of a shard: a back reference has 26 bits for the leaf and 6 for the place in it.
const LEAVES_MAX: usize = 1 << 26;

/// Entries of 64 neighbouring indexes.
#[derive(Debug)]
#[repr(C)]
struct Leaf {
    object: u64,
    /// Order 0: the slot. Else the number of the first slot of the run. A root: see [`Root`].
    slots: u64,
    /// Index >> 6.
    chunk: u32,
    /// Next leaf of the bucket, or of the free list.
    next: u32,
    pool: u16,
    /// First index (low six bits) that the run covers.
    base: u8,
    /// Log2 of the slots in the run.
    order: u8,
    /// Slots in use, and one more if the leaf is kept; `DEAD` for a leaf on the free list.
    live: u8,
    unused: [u8; 3],
}

const DEAD: u8 = u8::MAX;

// SAFETY: plain integers.
unsafe impl Zeroed for Leaf {}

/// What names a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafKey {
    pub(crate) object: u64,
    pub(crate) chunk: u32,
    pub(crate) pool: u16,
}

impl LeafKey {
    pub(crate) const fn of(pool: u16, key: Key) -> Self {
        Self { object: key.object, chunk: key.index >> LEAF_SHIFT, pool }
    }

    pub(crate) const fn root(pool: u16, object: u64) -> Self {
        Self { object, chunk: ROOT_CHUNK, pool }
    }

    /// Mixes the name with a secret; the high bits choose the shard, the low ones the bucket.
    /// (Folded multiplication, as in wyhash.)
    #[inline]
    pub(crate) const fn hash(self, seed: u64) -> u64 {
        let low = self.object ^ seed;
        let high = (self.chunk as u64 | (self.pool as u64) << 32) ^ 0x9e37_79b9_7f4a_7c15;
        let first = fold(low, 0xa076_1d64_78bd_642f ^ seed.rotate_left(32));
        fold(first ^ high, 0xe703_7ed1_a0b4_28db)
    }
}

const fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    (wide as u64) ^ (wide >> 64) as u64
}

/// An object with indexes beyond the first leaf has a root, which tells where to look for them: how
/// many such leaves there are, and the highest chunk ever used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) leaves: u32,
    pub(crate) chunk_max: u32,
}

impl Root {
    const fn from_bits(bits: u64) -> Self {
        Self { leaves: bits as u32, chunk_max: (bits >> 32) as u32 }
    }

    const fn bits(self) -> u64 {
        self.leaves as u64 | (self.chunk_max as u64) << 32
    }
}

/// The index of a shard, and the memory of its slots. Guarded by the shard's lock.
#[derive(Debug)]
pub(crate) struct Index {
    leaves: GrowArray<Leaf>,
    buckets: GrowArray<u32>,
    runs: GrowArray<u64>,
    /// Buckets in use.
    bucket_count: u32,
    leaf_free: u32,
    leaf_high: u32,
    leaf_live: u32,
    run_free: [u32; LEAF_SHIFT as usize + 1],
    run_high: u32,
    seed: u64,
}

impl Index {
    /// `count` empty indexes, each with room for `bytes_max` of leaves and as much of slots.
    pub(crate) fn open(count: usize, bytes_max: usize, seed: u64) -> io::Result<Vec<Self>> {
        let leaves = (bytes_max / size_of::<Leaf>()).clamp(LEAF_SLOTS, LEAVES_MAX);
        let slots = (bytes_max / size_of::<u64>()).min(NONE as usize);
        let bytes = GrowArray::<Leaf>::bytes_for(leaves)
            + GrowArray::<u32>::bytes_for(leaves)
            + GrowArray::<u64>::bytes_for(slots);
        let region = Arc::new(Region::reserve(count * bytes, Backing::Anonymous)?);
        let mut next = 0;
        let part = |_| Self::within(&region, &mut next, leaves, slots, seed);
        Ok((0..count).map(part).collect())
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
            leaf_high: 0,
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
            if leaf.object == key.object && leaf.chunk == key.chunk && leaf.pool == key.pool {
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
        let offset = (index % SLOTS).wrapping_sub(u32::from(leaf.base));
        if offset >> leaf.order != 0 {
            Slot::EMPTY
        } else if leaf.order == 0 {
            Slot(leaf.slots)
        } else {
            Slot(*self.runs.get(leaf.slots as usize + offset as usize))
        }
    }

    /// Sets the slot for `index` of a leaf; false when there is no memory for it. Clearing a slot
    /// and changing one that is in use always succeed.
    #[must_use]
    pub(crate) fn set(&mut self, leaf: u32, index: u32, slot: Slot, budget: &Budget) -> bool {
        let place = index % SLOTS;
        let entry = self.leaves.get(leaf as usize);
        if place.wrapping_sub(u32::from(entry.base)) >> entry.order != 0
            && !self.widen(leaf, place, budget)
        {
            return false;
        }
        let entry = self.leaves.get_mut(leaf as usize);
        let word = if entry.order == 0 {
            &mut entry.slots
        } else {
            let offset = place - u32::from(entry.base);
            self.runs.get_mut(entry.slots as usize + offset as usize)
        };
        let before = Slot(core::mem::replace(word, slot.0));
        entry.live += u8::from(before.is_empty() && !slot.is_empty());
        entry.live -= u8::from(!before.is_empty() && slot.is_empty());
        true
    }

    /// Makes the run of a leaf cover `place` too.
    fn widen(&mut self, leaf: u32, place: u32, budget: &Budget) -> bool {
        let entry = self.leaves.get(leaf as usize);
        let (base, order, slots) = (u32::from(entry.base), entry.order, entry.slots);
        // The smallest aligned range around both.
        let wide = (u32::BITS - (base ^ place).leading_zeros()).max(u32::from(order) + 1);
        let wide_base = base >> wide << wide;
        let Some(run) = self.take_run(wide, budget) else { return false };
        for offset in 0..1 << wide {
            *self.runs.get_mut((run + offset) as usize) = 0;
        }
        let shift = base - wide_base;
        if order == 0 {
            *self.runs.get_mut((run + shift) as usize) = slots;
        } else {
            for offset in 0..1 << order {
                let slot = *self.runs.get(slots as usize + offset as usize);
                *self.runs.get_mut((run + shift + offset) as usize) = slot;
            }
            self.free_run(slots as u32, u32::from(order));
        }
        let entry = self.leaves.get_mut(leaf as usize);
        entry.base = wide_base as u8;
        entry.order = wide as u8;
        entry.slots = u64::from(run);
        true
    }

    /// Makes a leaf whose first use will be at `index`.
    pub(crate) fn insert(
        &mut self,
        key: LeafKey,
        hash: u64,
        index: u32,
        budget: &Budget,
    ) -> Option<u32> {
        let at = if self.leaf_free == NONE {
            let at = self.leaf_high;
            if at as usize >= LEAVES_MAX || !self.leaves.grow(at as usize + 1, budget, Use::Index) {
                return None;
            }
            if self.bucket_count == 0 {
                if !self.buckets.grow(1, budget, Use::Index) {
                    return None;
                }
                self.bucket_count = 1;
            }
            self.leaf_high += 1;
            at
        } else {
            let at = self.leaf_free;
            self.leaf_free = self.leaves.get(at as usize).next;
            at
        };
        let head = self.buckets.get_mut(bucket(hash, self.bucket_count) as usize);
        let next = core::mem::replace(head, at + 1);
        *self.leaves.get_mut(at as usize) = Leaf {
            object: key.object,
            slots: 0,
            chunk: key.chunk,
            next,
            pool: key.pool,
            base: (index % SLOTS) as u8,
            order: 0,
            live: 0,
            unused: [0; 3],
        };
        self.leaf_live += 1;
        // Without memory for more buckets the chains get longer, no more.
        if self.leaf_live > self.bucket_count
            && self.buckets.grow(self.bucket_count as usize + 1, budget, Use::Index)
        {
            self.split();
        }
        Some(at)
    }

    /// Adds a bucket, and moves to it what belongs there.
    fn split(&mut self) {
        let new = self.bucket_count;
        let old = new - (1 << new.ilog2());
        self.bucket_count += 1;
        let mut at = core::mem::take(self.buckets.get_mut(old as usize));
        while at != 0 {
            let leaf = self.leaves.get(at as usize - 1);
            let key = LeafKey { object: leaf.object, chunk: leaf.chunk, pool: leaf.pool };
            let next = leaf.next;
            let target = bucket(key.hash(self.seed), self.bucket_count);
            let head = core::mem::replace(self.buckets.get_mut(target as usize), at);
            self.leaves.get_mut(at as usize - 1).next = head;
            at = next;
        }
    }

    /// Whether no slot of the leaf is in use.
    pub(crate) fn is_unused(&self, leaf: u32) -> bool {
        self.leaves.get(leaf as usize).live == 0
    }

    /// Makes a leaf for the first `count` of its indexes. It is kept when no slot of it is in use,
    /// until [`Self::let_go`], so that setting these slots never takes memory.
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
        self.leaves.get_mut(leaf as usize).live += 1;
        Some(leaf)
    }

    /// Ends the keeping of a leaf without used slots, and removes it.
    pub(crate) fn let_go(&mut self, leaf: u32) {
        debug_assert_eq!(self.leaves.get(leaf as usize).live, 1);
        self.remove(leaf);
    }

    /// Removes a leaf without used slots.
    pub(crate) fn remove(&mut self, leaf: u32) {
        let entry = self.leaves.get(leaf as usize);
        let (next, order, slots) = (entry.next, entry.order, entry.slots);
        let hash = self.key(leaf).hash(self.seed);
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
        if order != 0 {
            self.free_run(slots as u32, u32::from(order));
        }
        let free = core::mem::replace(&mut self.leaf_free, leaf);
        let entry = self.leaves.get_mut(leaf as usize);
        entry.next = free;
        entry.order = 0;
        entry.live = DEAD;
        self.leaf_live -= 1;
    }

    /// Adds the leaves of `pool` in the bucket that reversed hash `first` falls into to `found`, with
    /// their numbers, names and hashes. Gives which reversed hash the next bucket begins with.
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
        // A bucket that was split is told from its twin by one bit more.
        let level = self.bucket_count.ilog2();
        let split = number | 1 << level;
        let bits = level + u32::from(split < self.bucket_count || number >= 1 << level);
        let step = 1_u64 << (u32::BITS - bits);
        let next = (u64::from(first) & !(step - 1)) + step;
        u32::try_from(next).ok()
    }

    /// Leaves ever made: numbers below this may be in use.
    pub(crate) const fn leaf_high(&self) -> u32 {
        self.leaf_high
    }

    /// Leaves in use.
    pub(crate) const fn leaf_live(&self) -> u32 {
        self.leaf_live
    }

    /// Whether the leaf of this number is in use.
    pub(crate) fn is_live(&self, leaf: u32) -> bool {
        self.leaves.get(leaf as usize).live != DEAD
    }

    /// Whether the leaf of this number is in use for values of `pool`.
    pub(crate) fn is_of(&self, leaf: u32, pool: u16) -> bool {
        let leaf = self.leaves.get(leaf as usize);
        leaf.live != DEAD && leaf.pool == pool && leaf.chunk != ROOT_CHUNK
    }

    /// The name of a leaf.
    pub(crate) fn key(&self, leaf: u32) -> LeafKey {
        let leaf = self.leaves.get(leaf as usize);
        LeafKey { object: leaf.object, chunk: leaf.chunk, pool: leaf.pool }
    }

    /// What a root leaf says.
    pub(crate) fn root(&self, leaf: u32) -> Root {
        Root::from_bits(self.leaves.get(leaf as usize).slots)
    }

    /// Changes a root leaf.
    pub(crate) fn set_root(&mut self, leaf: u32, root: Root) {
        self.leaves.get_mut(leaf as usize).slots = root.bits();
    }

    fn take_run(&mut self, order: u32, budget: &Budget) -> Option<u32> {
        let found = (order..=LEAF_SHIFT).find(|&o| self.run_free[o as usize] != NONE);
        let (run, mut have) = if let Some(have) = found {
            let run = self.run_free[have as usize];
            self.run_free[have as usize] = *self.runs.get(run as usize) as u32;
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
        *self.runs.get_mut(run as usize) = u64::from(next);
    }
}

/// The bucket of a hash among `count` buckets, by linear hashing.
#[inline]
const fn bucket(hash: u64, count: u32) -> u32 {
    let level = count.ilog2();
    let wide = hash as u32 & ((1u64 << (level + 1)) - 1) as u32;
    if wide < count { wide } else { wide & ((1 << level) - 1) }
}
