//! Demotion: moves a swap disk's blocks from the store to its file.

use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_store::PageBuf;

use crate::config::Kind;
use crate::disk::{Disk, key_of};
use crate::error::Error;
use crate::group::{GROUP_BLOCKS, Group, runs};
use crate::map::BlockLocation;

impl Disk {
    /// Moves up to `blocks_max` blocks from the store to the backing file. It chooses blocks that were read back,
    /// because a swap slot that was read is probably dead, then the blocks that were put longest ago. Stops at
    /// `deadline`. A cache disk has no blocks to move.
    pub fn demote(&self, blocks_max: usize, deadline: Option<Instant>) -> Demoted {
        let mut demoted = Demoted::default();
        if self.config.kind == Kind::Cache || blocks_max == 0 {
            return demoted;
        }
        let chosen = self.oldest(blocks_max);
        let mut pages = vec![PageBuf::ZERO; GROUP_BLOCKS];
        for blocks in chosen.chunk_by(|a, b| Group::of(*a).number == Group::of(*b).number) {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            let group = Group::of(blocks[0]);
            self.demote_group(group, blocks.iter().copied(), &mut pages, &mut demoted);
        }
        demoted
    }

    /// Moves all blocks to the backing file. From now on writes go only to the file, so the store stays empty even if a
    /// guest continues to write.
    pub fn drain(&self) -> Demoted {
        let mut demoted = Demoted::default();
        // A write that has not seen the flag holds its group's lock, so demote_group waits for it.
        self.closed.store(true, Ordering::SeqCst);
        if self.config.kind == Kind::Swap {
            let mut pages = vec![PageBuf::ZERO; GROUP_BLOCKS];
            for first in (0..self.blocks()).step_by(GROUP_BLOCKS) {
                let blocks = first..self.blocks().min(first + GROUP_BLOCKS as u64);
                self.demote_group(Group::of(first), blocks, &mut pages, &mut demoted);
            }
        }
        demoted
    }

    /// The oldest blocks in the store, in their order on the disk.
    fn oldest(&self, blocks_max: usize) -> Vec<u64> {
        let mut oldest = BinaryHeap::with_capacity(blocks_max + 1);
        for block in self.map.at(BlockLocation::Store, 0..self.blocks()) {
            let age = self.ages.order(block);
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

    /// Moves blocks of one group. Those that can't be read or written stay where they are.
    fn demote_group(
        &self,
        group: Group,
        blocks: impl Iterator<Item = u64>,
        pages: &mut [PageBuf],
        demoted: &mut Demoted,
    ) {
        let _alone = self.stripes.alone(group.number);
        let mut held = 0_u64;
        for block in blocks.filter(|&block| self.map.place(block) == BlockLocation::Store) {
            let at = (block - group.first) as usize;
            match self.store.peek(self.pool, key_of(block), &mut pages[at]) {
                Ok(true) => held |= 1 << at,
                Ok(false) => demoted.fail(Error::Lost(block)),
                Err(error) => demoted.fail(error.into()),
            }
        }
        for (start, length) in runs(held) {
            let run = (u64::MAX >> (u64::BITS - length as u32)) << start;
            let first = group.first + start as u64;
            let written = self.file.write(first, &pages[start..start + length]);
            if let Err(error) =
                written.and_then(|()| self.map.set(group.first, run, BlockLocation::File))
            {
                demoted.fail(error.into());
                continue;
            }
            self.forget(first, length);
            self.counters.demoted.add(length as u64);
            demoted.blocks += length;
        }
    }
}

/// The result of a demotion.
#[derive(Debug, Default)]
pub struct Demoted {
    /// Number of moved blocks.
    pub blocks: usize,
    /// The reason why the first of the blocks that were not moved failed.
    pub failed: Option<Error>,
}

impl Demoted {
    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }
}
