//! Restores an index in memory that another process kept.
//!
//! Leaves and runs are trusted as far as they can be checked; everything else is rebuilt. Writes go
//! only to words without meaning, or keep their meaning, so that this can also be interrupted at
//! any instruction and restarted.

use super::{
    Head, Index, LEAF_SHIFT, LEAVES_MAX, LeafKey, ROOT_CHUNK, Root, SLOTS, bucket, commit,
};
use crate::error::Error;
use crate::slot::Slot;
use core::sync::atomic::Ordering;
use spillway_tiers::Budget;

/// The fate of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is removed, because its pool is gone or has nothing to keep.
    Drop,
    /// It stays while a slot of it is in use.
    Stay,
    /// It stays in any case: it belongs to a reserved pool.
    Keep,
}

/// The slots of runs that leaves have, a bit for each.
struct Taken(Vec<u64>);

impl Taken {
    /// The bits of an aligned range, which never crosses a word.
    const fn mask(run: u32, order: u32) -> u64 {
        (u64::MAX >> (64 - (1_u32 << order))) << (run % 64)
    }

    /// False if some of them are taken.
    fn take(&mut self, run: u32, order: u32) -> bool {
        let word = &mut self.0[run as usize / 64];
        let free = *word & Self::mask(run, order) == 0;
        *word |= Self::mask(run, order);
        free
    }
}

impl Index {
    /// First step: reads the number of leaves, and clears derived state.
    pub(crate) fn begin(&mut self, budget: &Budget) -> Result<(), Error> {
        const MANY: Error = Error::Damaged("more leaves than there is room for");
        if !self.leaves.restore(1, budget) {
            return Err(MANY);
        }
        let high = self.leaves.get(0).slot.load(Ordering::Relaxed).max(1);
        let room = self.leaves.room().min(LEAVES_MAX);
        if high > room as u64 || !self.leaves.restore(high as usize, budget) {
            return Err(MANY);
        }
        self.leaf_high = high as u32;
        self.buckets.forget()?;
        Ok(())
    }

    /// Rebuilds the index. `fate` decides about a leaf, and checks that it can belong to this
    /// index; `keep` gets each used slot, and returns its new value.
    pub(crate) fn rebuild(
        &mut self,
        budget: &Budget,
        fate: impl Fn(LeafKey) -> Result<Fate, Error>,
        mut keep: impl FnMut(LeafKey, Slot) -> Result<Slot, Error>,
    ) -> Result<(), Error> {
        self.begin(budget)?;
        self.restore_runs(budget)?;
        let mut taken = Taken(vec![0; self.run_high as usize / 64]);
        let mut live = Vec::new();
        for leaf in (1..self.leaf_high).rev() {
            if self.restore_leaf(leaf, &mut taken, &fate, &mut keep)? {
                live.push(leaf);
            } else {
                commit(&self.leaves.get(leaf as usize).head, Head::FREE.0);
                self.free_leaf(leaf);
            }
        }
        for block in 0..taken.0.len() {
            self.free_block(taken.0[block], block as u32 * SLOTS, LEAF_SHIFT);
        }
        self.restore_buckets(budget, &live)
    }

    /// Makes the leaves' runs usable.
    fn restore_runs(&mut self, budget: &Budget) -> Result<(), Error> {
        const BAD: Error = Error::Damaged("a leaf names slots where there are none");
        let mut high = 0;
        for leaf in 1..self.leaf_high {
            let head = self.leaves.get(leaf as usize).head();
            if head == Head::FREE {
                continue;
            }
            let count = 1_u64 << head.order();
            let end = u64::from(head.base()) + count;
            let places = [head.base(), head.run()].map(u64::from);
            let aligned = places.iter().all(|place| place.is_multiple_of(count));
            if head.order() > LEAF_SHIFT || end > u64::from(SLOTS) || !aligned || head.pool() == 0 {
                return Err(BAD);
            }
            if head.order() != 0 {
                high = high.max(u64::from(head.run()) + count);
            }
        }
        let high = high.next_multiple_of(u64::from(SLOTS));
        if high > self.runs.room() as u64 || !self.runs.restore(high as usize, budget) {
            return Err(BAD);
        }
        self.run_high = high as u32;
        Ok(())
    }

    /// Checks a leaf and all its slots; returns whether it stays.
    fn restore_leaf(
        &mut self,
        leaf: u32,
        taken: &mut Taken,
        fate: &impl Fn(LeafKey) -> Result<Fate, Error>,
        keep: &mut impl FnMut(LeafKey, Slot) -> Result<Slot, Error>,
    ) -> Result<bool, Error> {
        let entry = self.leaves.get(leaf as usize);
        let (head, key) = (entry.head(), self.key(leaf));
        if head == Head::FREE {
            return Ok(false);
        }
        let fate = fate(key)?;
        if fate == Fate::Drop {
            return Ok(false);
        }
        if key.chunk == ROOT_CHUNK {
            // Its leaves register with it later.
            if head.order() != 0 {
                return Err(Error::Damaged("a root has slots"));
            }
            self.set_root(leaf, Root { leaves: 0, chunk_max: 0 });
            return Ok(true);
        }
        if head.order() != 0 && !taken.take(head.run(), head.order()) {
            return Err(Error::Damaged("two leaves name the same slots"));
        }
        let mut live = u32::from(fate == Fate::Keep);
        for offset in 0..1 << head.order() {
            let word = self.word(entry, head, offset);
            let slot = Slot(word.load(Ordering::Relaxed));
            if !slot.is_empty() {
                commit(word, keep(key, slot)?.0);
                live += 1;
            }
        }
        commit(&entry.head, head.with_live(live).0);
        if live == 0 && head.order() != 0 {
            taken.0[head.run() as usize / 64] &= !Taken::mask(head.run(), head.order());
        }
        Ok(live != 0)
    }

    /// Puts the free parts of an aligned range of run slots on the free lists.
    fn free_block(&mut self, taken: u64, run: u32, order: u32) {
        match taken & Taken::mask(run, order) {
            0 => self.free_run(run, order),
            _ if order == 0 => {}
            _ => {
                let half = order - 1;
                self.free_block(taken, run, half);
                self.free_block(taken, run + (1 << half), half);
            }
        }
    }

    fn restore_buckets(&mut self, budget: &Budget, live: &[u32]) -> Result<(), Error> {
        self.leaf_live = live.len() as u32;
        if live.is_empty() {
            return Ok(());
        }
        if !self.buckets.restore(live.len(), budget) {
            return Err(Error::Damaged("more leaves than there is room for"));
        }
        self.bucket_count = live.len() as u32;
        for &leaf in live {
            let key = self.key(leaf);
            let hash = key.hash(self.seed);
            if self.find(key, hash).is_some() {
                return Err(Error::Damaged("two leaves have the same name"));
            }
            let head = self.buckets.get_mut(bucket(hash, self.bucket_count) as usize);
            let next = core::mem::replace(head, leaf + 1);
            self.leaves.get_mut(leaf as usize).next = next;
        }
        Ok(())
    }

    /// Last step: removes roots without leaves.
    pub(crate) fn remove_idle_roots(&mut self) {
        for leaf in 1..self.leaf_high {
            let is_root = self.is_live(leaf) && self.key(leaf).chunk == ROOT_CHUNK;
            if is_root && self.root(leaf).leaves == 0 {
                self.remove(leaf);
            }
        }
    }

    /// Whether a leaf has a slot for each of its first `count` indexes.
    pub(crate) fn covers(&self, leaf: u32, count: u32) -> bool {
        let head = self.leaves.get(leaf as usize).head();
        head.base() == 0 && count <= 1 << head.order()
    }
}
