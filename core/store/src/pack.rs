//! Packs pages in frames, before puts are refused.
//!
//! While memory grows, the oldest pages are packed one by one. Later there are single free frames at most,
//! and packed pages need spans: so pages are packed a chunk at a time, beginning with the one that the
//! oldest lies in, and what does not pack moves out of it. See [`spillway_tiers::Emptying`].

use core::time::Duration;

use spillway_tiers::WRITE_PAGES_MAX;
use spillway_tiers::sync::Ordering;

use crate::demote::{Bytes, Candidate};
use crate::index::{Index, LEAF_SHIFT, ROOT_CHUNK};
use crate::list::List;
use crate::position::SHARDS;
use crate::put::Placed;
use crate::scratch::Scratch;
use crate::slot::{Slot, ValueLocation};
use crate::store::Store;

/// Pages that a put packs when it finds memory full, unless its value is longer.
const ROOM_PAGES_MIN: usize = 32;

/// The part of memory that packing keeps free.
const SHORT_PART: u64 = 8;

/// Failures to find a cell or another frame before a chunk is abandoned.
const STUCK_MAX: u32 = 16;

/// The result of packing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packed {
    /// Pages that were packed.
    pub(crate) packed: usize,
    /// Pages that were tried and stay raw for good.
    pub(crate) incompressible: usize,
}

impl Packed {
    fn add(&mut self, other: Self) {
        self.packed += other.packed;
        self.incompressible += other.incompressible;
    }

    const fn seen(self) -> usize {
        self.packed + self.incompressible
    }
}

/// The result for one page.
enum Tried {
    Packed,
    /// It does not shrink by a quarter, and never will.
    Incompressible,
    /// It would, but there is no cell for it now.
    NoCell,
    /// Others hold its frame too.
    Shared,
}

/// Where the entry of a frame is.
#[derive(Clone, Copy)]
struct Entry {
    shard: usize,
    leaf: u32,
    place: u32,
    list: List,
    slot: Slot,
}

impl Store {
    /// Waits until memory is low, `wait` is over, or [`Self::wake`] is called. For the single task that
    /// calls [`Self::make_room_ahead`].
    pub fn wait_low(&self, wait: Duration) {
        self.arena.wait_low(wait);
    }

    /// Ends the wait of [`Self::wait_low`].
    pub fn wake(&self) {
        self.arena.tell_low();
    }

    /// Whether memory is low, so that pages should be packed or demoted: less than an eighth is left.
    pub fn is_short(&self) -> bool {
        self.arena.frames_left() < self.arena.frames_within_cap() / SHORT_PART
    }

    /// Packs about `pages_max` pages while memory is low, regardless of their clients; then, while it is
    /// nearly exhausted, moves the coldest to a lower tier. Returns the number of pages packed or moved,
    /// and of those that were tried and stay raw.
    pub fn make_room_ahead(&self, pages_max: usize, scratch: &mut Scratch) -> (usize, usize) {
        self.advance();
        let mut done = Packed::default();
        if self.config.compress && self.is_short() {
            done = self.pack(pages_max, scratch);
        }
        let moved = if done.seen() == 0 { self.page_out_while_low(pages_max, scratch) } else { 0 };
        (done.packed + moved, done.incompressible)
    }

    /// [`Self::pack_alone`], once no put packs.
    pub(crate) fn pack(&self, pages_max: usize, scratch: &mut Scratch) -> Packed {
        let _alone = self.own_scratch.as_ref().map(|own| own.lock());
        self.pack_alone(pages_max, scratch)
    }

    /// Packs up to `pages_max` raw pages, and looks at no more than a chunk's worth beyond that. Pages
    /// that LZ4 does not shrink by a quarter are marked and never looked at again; those for which there
    /// was no room stay as they were. More may be packed to have cells for the pages that come next.
    ///
    /// Two tasks would each hold a chunk half emptied, and the second one finds neither cells nor frames: a
    /// store that makes room itself lets only the task that holds its scratch memory pack.
    fn pack_alone(&self, pages_max: usize, scratch: &mut Scratch) -> Packed {
        let mut sum = Packed::default();
        while sum.seen() < pages_max {
            let had_spans = self.arena.has_spans();
            let step = if self.arena.grows() {
                self.pack_oldest(pages_max - sum.seen(), scratch)
            } else {
                self.pack_chunk(pages_max - sum.seen(), scratch)
            };
            sum.add(step);
            // Pages that only moved may have made spans.
            if step.seen() == 0 && (had_spans || !self.arena.has_spans()) {
                break;
            }
        }
        // Others may have what was freed, once there are cells for the pages that are packed next.
        while !self.arena.has_spans() && sum.packed != 0 {
            let step = self.pack_chunk(usize::MAX, scratch);
            sum.add(step);
            if step.packed == 0 {
                break;
            }
        }
        self.arena.release_stock();
        sum
    }

    /// Makes room for a value of `pages` that finds memory full: packs pages, or moves some down. False
    /// when nothing more can be done, or this store leaves it to its callers.
    #[cold]
    pub(crate) fn make_room(&self, pages: u64) -> bool {
        self.make_room_by_packing(pages) || self.make_room_by_disk()
    }

    /// Only one task does so at a time; the others wait, for the time of a chunk of pages or one write.
    /// No task waits here for a kept disk.
    fn make_room_by_packing(&self, pages: u64) -> bool {
        let Some(own) = &self.own_scratch else { return false };
        let mut scratch = own.lock();
        let pages_max = (pages as usize).max(ROOM_PAGES_MIN);
        let done = if self.config.compress {
            self.pack_alone(pages_max, &mut scratch)
        } else {
            Packed::default()
        };
        let moves_down = self.kept_disk().is_none();
        let pages_max = pages_max.min(WRITE_PAGES_MAX);
        done.seen() != 0 || moves_down && self.page_out(pages_max, &mut scratch) != 0
    }

    /// Packs the oldest pages, as long as memory grows.
    fn pack_oldest(&self, pages_max: usize, scratch: &mut Scratch) -> Packed {
        let mut sum = Packed::default();
        for _ in 0..pages_max {
            let Some(candidate) = self.candidate(&[List::Frames]) else { break };
            match self.pack_candidate(candidate, scratch) {
                Tried::Packed => sum.packed += 1,
                Tried::Incompressible => sum.incompressible += 1,
                Tried::NoCell | Tried::Shared => {}
            }
            if !self.arena.grows() {
                break;
            }
        }
        sum
    }

    fn pack_candidate(&self, candidate: Candidate<'_>, scratch: &mut Scratch) -> Tried {
        let page = match &candidate.bytes {
            Bytes::Raw(page) if !candidate.is_shared() => page,
            _ => {
                self.settle(candidate, None);
                return Tried::Shared;
            }
        };
        let Some(length) = scratch.packer.pack(page) else {
            let place = marked_incompressible(candidate.slot);
            self.settle(candidate, place.map(Placed::from));
            return Tried::Incompressible;
        };
        let domain = self.domain_of_owner(candidate.slot);
        let placed = self.keep_packed(domain, &scratch.packer.packed[..length]);
        let tried = if placed.is_some() { Tried::Packed } else { Tried::NoCell };
        self.settle(candidate, placed);
        tried
    }

    /// Packs the pages of the chunk that the oldest lies in, and moves what stays as it is elsewhere.
    fn pack_chunk(&self, pages_max: usize, scratch: &mut Scratch) -> Packed {
        let mut sum = Packed::default();
        let Some(emptying) = self.oldest_frames().find_map(|at| self.arena.empty_chunk_of(at))
        else {
            return sum;
        };
        let (mut shard, mut stuck) = (0, 0);
        for frame in emptying.frames() {
            let Some(entry) = self.entry_of(frame, shard) else { continue };
            shard = entry.shard;
            let tried = if entry.list == List::Frames && sum.seen() < pages_max {
                let candidate = self.take_entry(entry);
                candidate.map(|candidate| self.pack_candidate(candidate, scratch))
            } else {
                None
            };
            match tried {
                Some(Tried::Packed) => sum.packed += 1,
                Some(Tried::Incompressible) => {
                    sum.incompressible += 1;
                    self.move_frame(frame, shard);
                }
                Some(Tried::NoCell) if !self.move_frame(frame, shard) => {
                    // Neither cells nor frames: others of the chunk may be shorter.
                    stuck += 1;
                    if stuck == STUCK_MAX {
                        break;
                    }
                }
                Some(Tried::NoCell | Tried::Shared) => {}
                None => {
                    self.move_frame(frame, shard);
                }
            }
        }
        sum
    }

    /// Frames of the oldest raw pages, one of each shard that has any.
    fn oldest_frames(&self) -> impl Iterator<Item = u32> + '_ {
        (0..SHARDS).filter_map(|_| {
            let turn = self.demote_turn.fetch_add(1, Ordering::Relaxed);
            let shard = turn as usize % SHARDS;
            let (owner, list) = self.coldest_of_shard(shard, &[List::Frames])?;
            self.chains().oldest(self.client_shard(owner, shard), list)
        })
    }

    /// The entry that a frame is listed for. It is most likely in shard `first`.
    fn entry_of(&self, frame: u32, first: usize) -> Option<Entry> {
        (0..SHARDS).find_map(|step| {
            let shard = (first + step) % SHARDS;
            self.entry_within(&self.shards[shard].lock(), shard, frame)
        })
    }

    /// The same of one shard, which is locked. The frame's back reference may be outdated: the entry is
    /// authoritative.
    fn entry_within(&self, index: &Index, shard: usize, frame: u32) -> Option<Entry> {
        let back = self.arena.meta(frame).back.load(Ordering::Relaxed);
        let (leaf, place) = (back >> LEAF_SHIFT, back & ((1 << LEAF_SHIFT) - 1));
        if leaf >= index.leaf_high() || !index.is_live(leaf) {
            return None;
        }
        let key = index.key(leaf);
        if key.chunk == ROOT_CHUNK {
            return None;
        }
        let slot = index.slot(leaf, place);
        let (list, at) = List::of(slot.place(), self.lifetimes.is_ephemeral(key.pool))?;
        let found = slot.listed() && list.is_frames() && at == frame;
        found.then_some(Entry { shard, leaf, place, list, slot })
    }

    /// Chooses a raw page for the move, if it is still there.
    fn take_entry(&self, entry: Entry) -> Option<Candidate<'_>> {
        let mut index = self.shards[entry.shard].lock();
        let ValueLocation::Raw { frame, .. } = entry.slot.place() else { return None };
        let found = self.entry_within(&index, entry.shard, frame)?;
        if found.list != List::Frames {
            return None;
        }
        self.take_slot(&mut index, entry.shard, found.leaf, found.place)
    }

    /// Moves a page to another frame, where it keeps its place on its list. False when it stays.
    fn move_frame(&self, frame: u32, shard: usize) -> bool {
        let index = self.shards[shard].lock();
        let Some(before) = self.entry_within(&index, shard, frame) else { return false };
        let Some(page) = self.arena.pin(frame) else { return false };
        drop(index);
        let Some(new) = self.arena.store_moved(&page) else { return false };
        if before.list != List::EphemeralFrames
            && let Some(domain) = self.domain_of_owner(before.slot)
        {
            self.arena.share(new, domain);
        }
        let mut index = self.shards[shard].lock();
        let now = self.entry_within(&index, shard, frame);
        // The entry's reference and this one are expected.
        let stays = now.is_none_or(|now| now.slot != before.slot) || page.references() != 2;
        let (Some(now), Some(slot), false) = (now, before.slot.with_frame(new), stays) else {
            drop(index);
            self.arena.release(new);
            return false;
        };
        self.chains().replace(self.client_shard(slot.owner(), shard), now.list, frame, new);
        let kept = index.set(now.leaf, now.place, slot, self.budget());
        debug_assert!(kept, "changing a used slot takes no memory");
        drop(index);
        drop(page);
        self.arena.release(frame);
        true
    }
}

/// The same place with the mark of a page that does not shrink.
fn marked_incompressible(slot: Slot) -> Option<ValueLocation> {
    match slot.place() {
        ValueLocation::Raw { frame, length, .. } => {
            Some(ValueLocation::Raw { frame, length, incompressible: true })
        }
        _ => None,
    }
}
