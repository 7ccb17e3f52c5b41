//! Lists of frames and cells in the order of their last use, one set per client and shard.

use spillway_tiers::sync::Ordering;
use spillway_tiers::{Arena, Cells, Meta, NONE};

use spillway_types::PAGE_BYTES;

use crate::client::ClientShard;
use crate::slot::Place;

/// Which of a client's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Persistent pages in frames.
    Frames,
    /// Persistent pages in frames that could not be packed.
    StiffFrames,
    /// Persistent packed pages.
    Packed,
    /// Ephemeral values in frames.
    EphemeralFrames,
    /// Ephemeral values in cells.
    EphemeralCells,
}

/// How many lists a client has in a shard.
pub(crate) const LISTS: usize = 5;

impl List {
    /// The list for a value at `place`. Only what can be evicted or moved to a lower tier is on
    /// one: not uniform pages, pages in files, or persistent values that are not a page.
    pub(crate) const fn of(place: Place, ephemeral: bool) -> Option<(Self, u32)> {
        const PAGE: u16 = PAGE_BYTES as u16;
        match (place, ephemeral) {
            (Place::Raw { frame, length: PAGE, stiff: false }, false) => {
                Some((Self::Frames, frame))
            }
            (Place::Raw { frame, length: PAGE, stiff: true }, false) => {
                Some((Self::StiffFrames, frame))
            }
            (Place::Packed { cell, .. }, false) => Some((Self::Packed, cell)),
            (Place::Raw { frame, .. }, true) => Some((Self::EphemeralFrames, frame)),
            (
                Place::Small { cell, .. } | Place::Packed { cell, .. } | Place::Large { cell },
                true,
            ) => Some((Self::EphemeralCells, cell)),
            _ => None,
        }
    }

    pub(crate) const fn is_frames(self) -> bool {
        matches!(self, Self::Frames | Self::StiffFrames | Self::EphemeralFrames)
    }
}

/// The memory that lists run through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chains<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) cells: &'a Cells,
}

impl<'a> Chains<'a> {
    pub(crate) fn meta(self, list: List, at: u32) -> &'a Meta {
        if list.is_frames() { self.arena.meta(at) } else { self.cells.meta(self.arena, at) }
    }

    /// Makes `at` the youngest.
    pub(crate) fn push(self, shard: &ClientShard, list: List, at: u32, back: u32, stamp: u16) {
        let ends = &shard.lists[list as usize];
        let meta = self.meta(list, at);
        let youngest = ends.youngest.load(Ordering::Relaxed);
        meta.back.store(back, Ordering::Relaxed);
        meta.stamp.store(stamp, Ordering::Relaxed);
        meta.prev.store(youngest, Ordering::Relaxed);
        meta.next.store(NONE, Ordering::Relaxed);
        ends.youngest.store(at, Ordering::Relaxed);
        if youngest == NONE {
            ends.oldest.store(at, Ordering::Relaxed);
        } else {
            self.meta(list, youngest).next.store(at, Ordering::Relaxed);
        }
    }

    /// Takes `at` off its list.
    pub(crate) fn unlink(self, shard: &ClientShard, list: List, at: u32) {
        let ends = &shard.lists[list as usize];
        let meta = self.meta(list, at);
        let prev = meta.prev.load(Ordering::Relaxed);
        let next = meta.next.load(Ordering::Relaxed);
        if prev == NONE {
            ends.oldest.store(next, Ordering::Relaxed);
        } else {
            self.meta(list, prev).next.store(next, Ordering::Relaxed);
        }
        if next == NONE {
            ends.youngest.store(prev, Ordering::Relaxed);
        } else {
            self.meta(list, next).prev.store(prev, Ordering::Relaxed);
        }
    }

    /// Puts a page's new frame on its list, in place of the old one.
    pub(crate) fn replace(self, shard: &ClientShard, list: List, old: u32, new: u32) {
        let ends = &shard.lists[list as usize];
        let (from, to) = (self.meta(list, old), self.meta(list, new));
        let prev = from.prev.load(Ordering::Relaxed);
        let next = from.next.load(Ordering::Relaxed);
        to.back.store(from.back.load(Ordering::Relaxed), Ordering::Relaxed);
        to.stamp.store(from.stamp.load(Ordering::Relaxed), Ordering::Relaxed);
        to.prev.store(prev, Ordering::Relaxed);
        to.next.store(next, Ordering::Relaxed);
        if prev == NONE {
            ends.oldest.store(new, Ordering::Relaxed);
        } else {
            self.meta(list, prev).next.store(new, Ordering::Relaxed);
        }
        if next == NONE {
            ends.youngest.store(new, Ordering::Relaxed);
        } else {
            self.meta(list, next).prev.store(new, Ordering::Relaxed);
        }
    }

    /// The oldest of a list.
    pub(crate) fn oldest(self, shard: &ClientShard, list: List) -> Option<u32> {
        let at = shard.lists[list as usize].oldest.load(Ordering::Relaxed);
        (at != NONE).then_some(at)
    }
}
