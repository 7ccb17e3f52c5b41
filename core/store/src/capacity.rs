//! A capacity that changes while the store is in use, up to that of its opening: for memory that is lent to the store
//! and recalled.

use std::time::Instant;

use spillway_tiers::sync::Ordering;
use spillway_tiers::{WRITE_PAGES_MAX, least_cell_bytes};
use spillway_types::PAGE_BYTES;

use crate::config::Dedup;
use crate::index::{Index, LEAF_SLOTS, ROOT_CHUNK};
use crate::list::List;
use crate::position::SHARDS;
use crate::scratch::Scratch;
use crate::slot::{PREPAID, ValueLocation};
use crate::store::Store;

/// Leaves scanned under one lock of a shard.
const LOCKED_LEAVES: u32 = 256;
/// Pages moved between two checks of the memory in use.
const STEP_PAGES: u64 = WRITE_PAGES_MAX as u64;
/// Free frames returned between two checks.
const STEP_FRAMES: u64 = 256;

/// Persistent values in memory.
#[derive(Debug, Default)]
struct PersistentHeld {
    /// Those that a lower tier accepts, pages.
    pages: u64,
    /// The others, bytes.
    other_bytes: u64,
}

impl Store {
    /// The present capacity, bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.budget().cap()
    }

    /// Bytes of [`Self::capacity_bytes`] that are not lent: the limit of reserved pools.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.own_bytes.load(Ordering::Relaxed).min(self.capacity_bytes())
    }

    /// Sets the capacity: `own_bytes`, which stay, and `lent_bytes`, which may be recalled; together at most the
    /// capacity at the opening. Memory in use beyond that stays, and makes puts fail, until [`Self::shrink`] has moved
    /// it.
    pub fn set_capacity(&self, own_bytes: u64, lent_bytes: u64) {
        let most_bytes = self.config.capacity_bytes;
        self.own_bytes.store(own_bytes.min(most_bytes), Ordering::Relaxed);
        self.budget().set_cap(own_bytes.saturating_add(lent_bytes).min(most_bytes));
    }

    /// Returns memory to the host until at most [`Self::capacity_bytes`] is in use: free memory, then ephemeral values,
    /// then pages that a lower tier accepts, the coldest first, packed or not. Returns whether it succeeded; otherwise
    /// nothing more can leave, or `until` has passed. No persistent value is lost. Several tasks may do this together:
    /// one may find nothing because the others have it.
    pub fn shrink(&self, until: Instant, scratch: &mut Scratch) -> bool {
        self.arena.trim();
        self.advance();
        // Pages that several entries share stay, and there may be many in a row: each is tried once. A write may be
        // late.
        let shared = if self.config.dedup == Dedup::Off { 0 } else { self.memory_bytes() };
        let mut looks_left = 3 + shared / (STEP_PAGES * PAGE_BYTES as u64);
        loop {
            let over_bytes = self.memory_bytes().saturating_sub(self.capacity_bytes());
            if over_bytes == 0 {
                return true;
            }
            let over_pages = over_bytes.div_ceil(PAGE_BYTES as u64);
            let given = self.arena.hollow_out(over_pages.min(STEP_FRAMES) as usize) > 0;
            if !given && !self.send_away(over_pages.min(STEP_PAGES), scratch) {
                looks_left -= 1;
            }
            if looks_left == 0 || Instant::now() >= until {
                // The last pages may have left whole chunks free.
                self.arena.trim();
                return self.memory_bytes() <= self.capacity_bytes();
            }
        }
    }

    /// Drops or demotes values of about `pages`. False if none can leave.
    fn send_away(&self, pages: u64, scratch: &mut Scratch) -> bool {
        let mut dropped = 0;
        while dropped < pages {
            let Some(more) = self.evict_of(self.client_numbers()) else { break };
            dropped += more;
        }
        let lists = [List::Frames, List::IncompressibleFrames, List::Packed];
        dropped > 0 || self.page_out_of(&lists, pages as usize, scratch) > 0
    }

    /// Bytes in memory that could not leave on a recall, beside [`Self::reserved_bytes`]: persistent values that are
    /// not a page or share one, and persistent pages that do not fit on the disk. Scans the whole index: some
    /// milliseconds for a million values.
    pub fn fixed_bytes(&self) -> u64 {
        let mut held = PersistentHeld::default();
        for shard in 0..SHARDS {
            let mut first = 0;
            loop {
                let index = self.shards[shard].lock();
                let (end, high) = (first + LOCKED_LEAVES, index.leaf_high());
                (first..end.min(high)).for_each(|leaf| self.count_leaf(&index, leaf, &mut held));
                if end >= high {
                    break;
                }
                first = end;
            }
        }
        let stuck = held.pages.saturating_sub(self.disk_room_pages());
        held.other_bytes + stuck * PAGE_BYTES as u64
    }

    /// Counts the persistent values of a leaf that are in memory.
    fn count_leaf(&self, index: &Index, leaf: u32, held: &mut PersistentHeld) {
        if !index.is_live(leaf) {
            return;
        }
        let key = index.key(leaf);
        if key.chunk == ROOT_CHUNK || self.lifetimes.is_ephemeral(key.pool) {
            return;
        }
        for slot in (0..LEAF_SLOTS as u32).map(|place| index.slot(leaf, place)) {
            match slot.place() {
                _ if slot.owner() == PREPAID => {}
                ValueLocation::Empty
                | ValueLocation::Disk { .. }
                | ValueLocation::Blade(_)
                | ValueLocation::Uniform { .. } => {}
                ValueLocation::Raw { frame, length, .. }
                    if length < PAGE_BYTES as u16 || self.arena.meta(frame).references() > 1 =>
                {
                    held.other_bytes += PAGE_BYTES as u64;
                }
                ValueLocation::Packed { cell, length }
                    if self.cells.meta(&self.arena, cell).references() > 1 =>
                {
                    held.other_bytes += least_cell_bytes(usize::from(length)) as u64;
                }
                place if List::of(place, false).is_some() => held.pages += 1,
                ValueLocation::Large { .. } => {
                    held.other_bytes += self.length(slot).next_multiple_of(PAGE_BYTES) as u64;
                }
                _ => held.other_bytes += least_cell_bytes(self.length(slot)) as u64,
            }
        }
    }

    /// Bytes reserved by pools.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_pages() * PAGE_BYTES as u64
    }

    /// Pages reserved by all clients' pools.
    pub(crate) fn reserved_pages(&self) -> u64 {
        let of = |number: u16| &self.clients[usize::from(number)];
        self.client_numbers().map(|number| of(number).reserved_pages.load(Ordering::Relaxed)).sum()
    }

    /// Pages that the disk still accepts; 0 while it fails, or if there is none.
    fn disk_room_pages(&self) -> u64 {
        let Some(disk) = self.disk_counters().filter(|disk| disk.trouble.is_none()) else {
            return 0;
        };
        disk.capacity_pages.saturating_sub(disk.pages)
    }
}
