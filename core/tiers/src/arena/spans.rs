//! Spans of adjacent frames, from which cells are cut, and those that are kept for packing.

use super::{Arena, CHUNK_BYTES, CHUNK_FRAMES, CHUNK_SPANS, SPAN_FRAMES, SPANS, SPANS_WHOLE};
use crate::budget::Use;

/// Bytes by which the index may grow while packing relies on memory for another chunk.
const INDEX_GROWTH_BYTES: u64 = 64 << 10;

/// From this capacity on a chunk is kept for packing.
const PACKING_CAP_MIN_BYTES: u64 = 4 << 20;

impl Arena {
    /// Takes adjacent frames of zeros for a span. Gives the first. The last spans are for packing.
    pub(crate) fn take_span(&self, to: Use) -> Option<u32> {
        let (chunk, bit) = self.take_span_from(to).or_else(|| {
            // A chunk may lack no more than what a core has at hand.
            self.empty_hands();
            self.take_span_from(to)
        })?;
        Some(chunk * CHUNK_FRAMES + bit * SPAN_FRAMES)
    }

    fn take_span_from(&self, to: Use) -> Option<(u32, u32)> {
        if to == Use::Packing {
            return self.take_from(SPANS, to);
        }
        let mut head = self.lanes[SPANS].0.lock();
        if head.free > self.spans_kept() {
            return self.take_free_of(&mut head);
        }
        drop(head);
        self.grow_lane(SPANS, to)
    }

    /// Free spans that are left to packing, because the budget has none for it any more.
    fn spans_kept(&self) -> u64 {
        let has_reserve = self.budget.keeps_for_packing();
        if has_reserve && !self.has_chunk_for_packing() { CHUNK_SPANS } else { 0 }
    }

    /// Whether packing can take another chunk, also if the index grows before it does.
    pub(super) fn has_chunk_for_packing(&self) -> bool {
        self.left(Use::Packing) >= CHUNK_BYTES as u64 + INDEX_GROWTH_BYTES
    }

    /// Whether packing has few spans left.
    pub(crate) fn spans_are_scarce(&self) -> bool {
        !self.has_chunk_for_packing() && self.lanes[SPANS].0.lock().free <= CHUNK_SPANS / 2
    }

    /// Keeps a chunk for packing, if that is a small part of all: then a store that is full of frames can
    /// still pack.
    pub fn keep_for_packing(&mut self) {
        if self.budget.cap() >= PACKING_CAP_MIN_BYTES {
            self.budget.keep_for_packing(CHUNK_BYTES as u64);
        }
    }

    /// Gives a span back, zeroed by the caller.
    pub(crate) fn free_span(&self, first: u32) {
        self.give(first / CHUNK_FRAMES, first % CHUNK_FRAMES / SPAN_FRAMES, SPANS_WHOLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Backing;

    #[test]
    fn spans_are_scarce_without_memory_for_a_chunk() {
        let arena = Arena::open(8 << 20, Backing::Anonymous, false).unwrap();
        let budget = arena.budget();
        let more = budget.left(Use::Packing) - CHUNK_BYTES as u64 - INDEX_GROWTH_BYTES;
        assert!(budget.take(more, Use::Packing));
        assert!(!arena.spans_are_scarce(), "there is a chunk to cut spans from");
        assert!(budget.take(1, Use::Packing));
        assert!(arena.spans_are_scarce());
    }
}
