//! Lists of frames and cells in the order of their last use, one set per client and shard.

use spillway_tiers::sync::Ordering;
use spillway_tiers::{Arena, Cells, Meta, NONE};

use crate::client::ClientShard;
use crate::list::List;

/// The memory that the lists link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chains<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) cells: &'a Cells,
}

impl<'a> Chains<'a> {
    pub(crate) fn meta(self, list: List, at: u32) -> &'a Meta {
        if list.is_frames() { self.arena.meta(at) } else { self.cells.meta(self.arena, at) }
    }

    /// How long ago `at` was used, for a caller without its shard's lock. An entry that is gone counts as the oldest:
    /// under the lock another one is found in its place.
    pub(crate) fn age(self, list: List, at: u32, now: u16) -> u16 {
        let stamp = if list.is_frames() {
            Some(self.arena.meta(at).stamp.load(Ordering::Relaxed))
        } else {
            self.cells.stamp(self.arena, at)
        };
        stamp.map_or(u16::MAX, |stamp| now.wrapping_sub(stamp))
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

    /// Removes `at` from its list.
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

    /// Replaces a page's old frame by its new one on its list.
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
