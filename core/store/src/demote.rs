//! Moves pages to lower tiers: from frames to cells, from memory to files.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use spillway_tiers::lz4::{pack, unpack};
use spillway_tiers::sync::Ordering;
use spillway_tiers::{CellPin, Disk, Files, PageBuf, Pinned, Use, WRITE_PAGES_MAX};
use spillway_types::PAGE_BYTES;

use crate::index::{Index, LEAF_SHIFT, LeafKey};
use crate::list::List;
use crate::position::{HandlePosition, SHARDS};
use crate::put::Placed;
use crate::scratch::Scratch;
use crate::slot::{Slot, ValueLocation};
use crate::store::Store;

/// Part of all frames that paging out keeps free, and its bounds.
const LOW_PART: u64 = 64;
/// The same if memory only stages pages for a blade: enough for a burst.
const LOW_PART_STAGING: u64 = 4;
const LOW_MIN_FRAMES: u64 = 64;
const LOW_MAX_FRAMES: u64 = 16 * 1024;

/// Memory that paging out keeps free for the index to grow into.
const INDEX_LOW_BYTES: u64 = 32 << 10;

/// A page chosen for a move. Its slot is on no list meanwhile, so that no other task chooses it,
/// and its bytes are pinned. The page stays readable in its place. If its slot has changed by the
/// end, the move is undone.
#[derive(Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) leaf: LeafKey,
    pub(crate) place: u32,
    pub(crate) slot: Slot,
    pub(crate) bytes: Bytes<'a>,
}

#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    Raw(Pinned<'a>),
    Packed(CellPin<'a>),
}

type Candidates<'a> = [Option<Candidate<'a>>; WRITE_PAGES_MAX];

impl Candidate<'_> {
    /// Whether other entries or readers hold the frame or cell: then moving this page frees nothing.
    pub(crate) fn is_shared(&self) -> bool {
        let references = match &self.bytes {
            Bytes::Raw(page) => page.references(),
            Bytes::Packed(cell) => cell.references(),
        };
        // The entry's reference and this one are expected.
        references > 2
    }
}

impl Store {
    /// Demotes up to `pages_max` pages: the oldest raw pages to the compressed tier (if the store
    /// compresses); then, while memory is close to its capacity, the coldest to the blade or the file
    /// tier (if there is one). Returns the number of pages moved; 0 means that none could be.
    ///
    /// A page that LZ4 does not shrink by a quarter stays raw, and is tried only once: unpacking it
    /// would cost each reader more than a microsecond for little memory.
    pub fn demote(&self, pages_max: usize, scratch: &mut Scratch) -> usize {
        self.advance();
        let mut moved = if self.config.compress { self.pack(pages_max, scratch).packed } else { 0 };
        moved += self.page_out_while_low(pages_max.saturating_sub(moved), scratch);
        moved
    }

    /// Moves up to `pages_max` pages to a lower tier while memory is nearly exhausted.
    pub(crate) fn page_out_while_low(&self, pages_max: usize, scratch: &mut Scratch) -> usize {
        let mut moved = 0;
        while moved < pages_max && self.has_below() && self.is_low() {
            let count = self.page_out(pages_max - moved, scratch);
            if count == 0 {
                break;
            }
            moved += count;
        }
        moved
    }

    /// Compensates for pages that a client holds beyond its target: drops up to `pages_max` of its
    /// ephemeral pages, then demotes the store's coldest pages, regardless of which client owns them.
    /// Returns the number of pages dropped or moved.
    ///
    /// # Errors
    /// [`Error::NoClient`](crate::Error::NoClient).
    pub fn reclaim(
        &self,
        client: spillway_types::ClientId,
        pages_max: usize,
        scratch: &mut Scratch,
    ) -> Result<usize, crate::Error> {
        let dropped = self.evict_beyond_target(client, pages_max)?;
        let (_, entry) = self.client(client)?;
        if dropped >= pages_max || entry.used_pages() <= entry.target_pages() {
            return Ok(dropped);
        }
        Ok(dropped + self.demote(pages_max - dropped, scratch))
    }

    /// Drops ephemeral values of a client while it holds more than its target, the coldest first, until
    /// these were `pages_max` pages or more. Returns their number of pages.
    ///
    /// # Errors
    /// [`Error::NoClient`](crate::Error::NoClient).
    pub fn evict_beyond_target(
        &self,
        client: spillway_types::ClientId,
        pages_max: usize,
    ) -> Result<usize, crate::Error> {
        let (number, entry) = self.client(client)?;
        let number = number as u16;
        let mut dropped = 0;
        while dropped < pages_max && entry.used_pages() > entry.target_pages() {
            let Some(pages) = self.evict_of(number..number + 1) else { break };
            dropped += pages as usize;
        }
        Ok(dropped)
    }

    /// Whether there is a tier below memory.
    const fn has_below(&self) -> bool {
        self.files.is_some() || self.blade.is_some()
    }

    /// Whether pages can come back from lower tiers without displacing others.
    pub(crate) fn has_much_room(&self) -> bool {
        let left = self.arena.frames_left();
        !self.is_low() && left > (self.arena.frames_within_cap() / 16).max(2 * LOW_MIN_FRAMES)
    }

    fn is_low(&self) -> bool {
        if self.arena.left(Use::Index) < INDEX_LOW_BYTES {
            return true;
        }
        let part = if self.blade.is_some() { LOW_PART_STAGING } else { LOW_PART };
        let low = self.arena.frames_within_cap() / part;
        self.arena.frames_left() < low.clamp(LOW_MIN_FRAMES, LOW_MAX_FRAMES)
    }

    /// Moves up to `pages_max` of the coldest pages, at most [`WRITE_PAGES_MAX`], to the blade, and
    /// those that it refuses to a file. Returns the number of pages moved.
    pub(crate) fn page_out(&self, pages_max: usize, scratch: &mut Scratch) -> usize {
        let lists: &[List] = if self.config.compress {
            &[List::IncompressibleFrames, List::Packed]
        } else {
            &[List::Frames, List::IncompressibleFrames, List::Packed]
        };
        self.page_out_of(lists, pages_max, scratch)
    }

    /// The same for some lists.
    pub(crate) fn page_out_of(
        &self,
        lists: &[List],
        pages_max: usize,
        scratch: &mut Scratch,
    ) -> usize {
        if !self.has_below() {
            return 0;
        }
        let mut moving = self.kept_disk().map(|disk| disk.turns().moving());
        let mut candidates = [const { None }; WRITE_PAGES_MAX];
        let mut count = 0;
        for _ in 0..2 * WRITE_PAGES_MAX {
            if count == WRITE_PAGES_MAX.min(pages_max) {
                break;
            }
            let Some(candidate) = self.candidate(lists) else { break };
            if candidate.is_shared() {
                self.settle(candidate, None);
                continue;
            }
            candidates[count] = Some(candidate);
            count += 1;
        }
        if count == 0 {
            return 0;
        }
        if let Some(moving) = &mut moving {
            moving.has_pages();
        }
        let sent = self.move_to_blade(&mut candidates, scratch);
        let moved = sent + self.move_to_file(candidates, scratch);
        // The tier's metadata grows with each page that leaves.
        if self.arena.left(Use::Index) < INDEX_LOW_BYTES {
            self.arena.hollow_out(moved / 2);
        }
        moved
    }

    /// Sends pages to the blade: packed ones as they are, the others packed if that makes them any
    /// shorter, because a sealed raw page is longer than a page and takes two there. Removes accepted
    /// pages from the candidates. Returns their number.
    fn move_to_blade(&self, candidates: &mut Candidates<'_>, scratch: &mut Scratch) -> usize {
        let Some(blade) = self.blade.as_ref().filter(|blade| blade.takes()) else { return 0 };
        let length_max = PAGE_BYTES - blade.added_bytes();
        let mut contents: [&[u8]; WRITE_PAGES_MAX] = [&[]; WRITE_PAGES_MAX];
        let mut count = 0;
        for (candidate, room) in candidates.iter().flatten().zip(&mut scratch.pages) {
            contents[count] = match &candidate.bytes {
                Bytes::Packed(cell) => cell,
                Bytes::Raw(page) if self.config.compress => {
                    let length = pack(page, &mut scratch.packer.packed, &mut scratch.packer.table);
                    if length > length_max {
                        &page[..]
                    } else {
                        room.0[..length].copy_from_slice(&scratch.packer.packed[..length]);
                        &room.0[..length]
                    }
                }
                Bytes::Raw(page) => &page[..],
            };
            count += 1;
        }
        let mut places = [None; WRITE_PAGES_MAX];
        self.send_to_blade(&contents[..count], &mut places);
        let mut moved = 0;
        for (candidate, place) in candidates.iter_mut().zip(places) {
            if let Some(place) = place
                && let Some(candidate) = candidate.take()
            {
                self.settle(candidate, Some(ValueLocation::Blade(place).into()));
                moved += 1;
            }
        }
        moved
    }

    /// Writes pages to a file. Gives how many were written.
    fn move_to_file(&self, candidates: Candidates<'_>, scratch: &mut Scratch) -> usize {
        let mut left = [const { None }; WRITE_PAGES_MAX];
        let mut count = 0;
        for candidate in candidates.into_iter().flatten() {
            if let Bytes::Packed(cell) = &candidate.bytes
                && self.files.is_some()
                && !unpack(cell, &mut scratch.pages[count].0)
            {
                // Memory is damaged. The reader gets the error, not another page.
                self.settle(candidate, None);
                continue;
            }
            left[count] = Some(candidate);
            count += 1;
        }
        let mut places = [None; WRITE_PAGES_MAX];
        let pages = &pages_of(&left, &scratch.pages)[..count];
        let disk = self.files.as_ref().filter(|_| count > 0);
        let written = disk.is_some_and(|disk| disk.write(pages, self.budget(), &mut places));
        for (candidate, place) in left.into_iter().flatten().zip(places) {
            let place = place.map(|(file, slot)| ValueLocation::Disk { file, slot }.into());
            self.settle(candidate, place);
        }
        if written { count } else { 0 }
    }

    /// Chooses the coldest page on some lists, in the next shard that has one.
    pub(crate) fn candidate(&self, lists: &[List]) -> Option<Candidate<'_>> {
        let in_turn =
            (0..SHARDS).map(|_| self.demote_turn.fetch_add(1, Ordering::Relaxed) as usize % SHARDS);
        // Concurrent tasks may advance the shared counter in step and skip shards.
        for shard in in_turn.chain(0..SHARDS) {
            for _ in 0..2 {
                let Some((owner, list)) = self.coldest_of_shard(shard, lists) else { break };
                if let Some(candidate) = self.take_oldest(shard, owner, list) {
                    return Some(candidate);
                }
            }
        }
        None
    }

    pub(crate) fn coldest_of_shard(&self, shard: usize, lists: &[List]) -> Option<(u16, List)> {
        let now = self.now();
        let owners = self
            .client_numbers()
            .filter(|&owner| self.clients[usize::from(owner)].used_pages() != 0);
        let ends = owners.flat_map(|owner| lists.iter().map(move |&list| (owner, list)));
        let aged = ends.filter_map(|(owner, list)| {
            let at = self.chains().oldest(self.client_shard(owner, shard), list)?;
            Some((self.chains().age(list, at, now), owner, list))
        });
        aged.max_by_key(|(age, ..)| *age).map(|(_, owner, list)| (owner, list))
    }

    fn take_oldest(&self, shard: usize, owner: u16, list: List) -> Option<Candidate<'_>> {
        let mut index = self.shards[shard].lock();
        let at = self.chains().oldest(self.client_shard(owner, shard), list)?;
        let back = self.chains().meta(list, at).back.load(Ordering::Relaxed);
        let (leaf, place) = (back >> LEAF_SHIFT, back & ((1 << LEAF_SHIFT) - 1));
        self.take_slot(&mut index, shard, leaf, place)
    }

    /// Chooses the value of a slot for the move; the shard is locked.
    pub(crate) fn take_slot(
        &self,
        index: &mut Index,
        shard: usize,
        leaf: u32,
        place: u32,
    ) -> Option<Candidate<'_>> {
        let slot = index.slot(leaf, place);
        let bytes = match slot.place() {
            ValueLocation::Raw { frame, .. } => Bytes::Raw(self.arena.pin(frame)?),
            ValueLocation::Packed { cell, length } => {
                Bytes::Packed(self.cells.pin(&self.arena, cell, usize::from(length))?)
            }
            _ => return None,
        };
        self.unlist(slot, shard, false);
        let slot = slot.with_listed(false);
        let kept = index.set(leaf, place, slot, self.budget());
        debug_assert!(kept, "changing a used slot takes no memory");
        Some(Candidate { leaf: index.key(leaf), place, slot, bytes })
    }

    /// Ends a move: the page is at `place` from now on, or stays if that is none.
    pub(crate) fn settle(&self, candidate: Candidate<'_>, placed: Option<Placed>) {
        let Candidate { leaf, place: index_place, slot: old, bytes } = candidate;
        let at = HandlePosition::of_leaf(leaf, index_place, self.seed);
        let new = placed.map_or(old, |placed| Slot::new(placed.place, old.owner()));
        // Another entry that shares the memory has it on a list.
        let lists = placed.is_none_or(|placed| !placed.shared);
        let moved = !same_memory(old, new);
        let mut index = self.shards[at.shard].lock();
        let found = self.find(&index, &at).filter(|&(_, slot)| slot == old);
        if let Some((leaf, _)) = found {
            let listed = if lists { self.list(new, at.shard, leaf, at.index, false) } else { new };
            let kept = index.set(leaf, at.index, listed, self.budget());
            debug_assert!(kept, "changing a used slot takes no memory");
        }
        drop(index);
        drop(bytes);
        if moved {
            // If found, the old place is free. Otherwise the page was flushed or rewritten, and the
            // copy is useless.
            self.free_place(if found.is_some() { old } else { new });
        }
    }

    /// Makes the files of the disk tier read-only, before a fork: neither this process nor the
    /// child frees or reuses anything in them; later page-outs go to new files. ([`Blade::share`]
    /// does the same for the blade.)
    ///
    /// [`Blade::share`]: spillway_tiers::blade::Blade::share
    pub fn seal_files(&self) {
        if let Some(files) = self.files.as_ref().and_then(Disk::own) {
            files.seal();
        }
    }

    /// Replaces the descriptors of all files, of the disk tier and of a mirror, for a task with another descriptor
    /// table. `open` gets the number in the old table, whose descriptors are not closed.
    ///
    /// # Errors
    /// What `open` says.
    pub fn reopen_files(&self, open: impl FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        let mut open = open;
        if let Some(files) = self.files.as_ref().and_then(Disk::own) {
            files.reopen(&mut open)?;
        }
        self.blade.as_ref().map_or(Ok(()), |blade| blade.reopen(&mut open))
    }

    /// Numbers of the descriptors in use: those of files, and of kept memory.
    pub fn file_descriptors(&self) -> Vec<u64> {
        let files = self.files.iter().filter_map(Disk::own).flat_map(Files::descriptors);
        let memory = self.kept_descriptors().into_iter().flatten();
        let own = files.chain(memory.map(|(_, file)| file.as_raw_fd())).map(|fd| fd as u64);
        own.chain(self.blade.iter().flat_map(|blade| blade.descriptors())).collect()
    }

    /// Why the file tier refused a page; the call clears this. `NOSPC` if it is full.
    /// ([`Store::disk_counters`] is for the disk of a store in memfds.)
    pub fn take_disk_error(&self) -> Option<Errno> {
        self.files.as_ref().and_then(Disk::own)?.take_error()
    }
}

/// Whether two slots name the same frame or cell.
fn same_memory(a: Slot, b: Slot) -> bool {
    match (a.place(), b.place()) {
        (ValueLocation::Raw { frame: a, .. }, ValueLocation::Raw { frame: b, .. }) => a == b,
        (a, b) => a == b,
    }
}

fn pages_of<'a>(
    candidates: &'a Candidates<'a>,
    unpacked: &'a [PageBuf],
) -> [&'a [u8; PAGE_BYTES]; WRITE_PAGES_MAX] {
    core::array::from_fn(|number| match &candidates[number] {
        Some(Candidate { bytes: Bytes::Raw(page), .. }) => &**page,
        _ => &unpacked[number].0,
    })
}
