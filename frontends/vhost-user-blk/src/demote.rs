//! Moving a swap disk's blocks from the store to its file.

use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_store::PageBuf;

use crate::Kind;
use crate::disk::{Disk, GROUP_BLOCKS, Group, key_of, runs};
use crate::error::Error;
use crate::map::Place;

impl Disk {
    /// Moves up to `blocks_max` blocks from the store to the backing file: those that were read back
    /// first, since a swap slot that was read is probably dead, then those that were put longest ago.
    /// Stops at `deadline`. Gives the blocks moved; a cache disk has none to move.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Store`]: the blocks not moved stay where they are.
    pub fn demote(&self, blocks_max: usize, deadline: Option<Instant>) -> Result<usize, Error> {
        if self.config.kind == Kind::Cache || blocks_max == 0 {
            return Ok(0);
        }
        let chosen = self.oldest(blocks_max);
        let mut pages = vec![PageBuf::ZERO; GROUP_BLOCKS];
        let mut moved = 0;
        for blocks in chosen.chunk_by(|a, b| Group::of(*a).number == Group::of(*b).number) {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            moved += self.demote_group(blocks, &mut pages)?;
        }
        Ok(moved)
    }

    /// The oldest blocks in the store, in their order on the disk.
    fn oldest(&self, blocks_max: usize) -> Vec<u64> {
        let mut oldest = BinaryHeap::with_capacity(blocks_max + 1);
        for block in self.map.at(Place::Store, 0..self.blocks()) {
            let age = self.ages[block as usize].load(Ordering::Relaxed);
            if oldest.len() == blocks_max && oldest.peek().is_some_and(|&top| top <= (age, block)) {
                continue;
            }
            oldest.push((age, block));
            if oldest.len() > blocks_max {
                oldest.pop();
            }
        }
        let mut blocks: Vec<u64> = oldest.into_iter().map(|(_, block)| block).collect();
        blocks.sort_unstable();
        blocks
    }

    /// Moves blocks of one group.
    fn demote_group(&self, blocks: &[u64], pages: &mut [PageBuf]) -> Result<usize, Error> {
        let Some(group) = blocks.first().map(|&block| Group::of(block)) else { return Ok(0) };
        let _alone = self.stripes.alone(group.number);
        let mut held = 0_u64;
        for &block in blocks {
            let at = (block - group.first) as usize;
            if self.map.place(block) != Place::Store {
                continue;
            }
            if self.store.peek(self.pool, key_of(block), &mut pages[at])? {
                held |= 1 << at;
            } else {
                // The pool was destroyed under the disk.
                self.map.set(group.first, 1 << at, Place::Lost)?;
            }
        }
        for (start, length) in runs(held) {
            self.file.write(group.first + start as u64, &pages[start..start + length])?;
            let run = (u64::MAX >> (u64::BITS - length as u32)) << start;
            self.map.set(group.first, run, Place::File)?;
            self.forget(group.first + start as u64, length);
            self.counters.demoted.add(length as u64);
        }
        Ok(held.count_ones() as usize)
    }
}
