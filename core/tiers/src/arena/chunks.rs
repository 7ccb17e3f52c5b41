//! Whole chunks: how they get their memory, and how it returns to the host.

use super::{Arena, CHUNK_BYTES, CHUNK_FRAMES, Lane, NONE, SPANS, SPANS_WHOLE};
use crate::budget::Use;
use crate::region::HUGE_BYTES;
use crate::sync::Ordering;

/// Chunks of a huge page.
const HUGE_CHUNKS: usize = HUGE_BYTES / CHUNK_BYTES;
/// Address space is committed in steps of this many bytes, to keep mappings few.
const COMMIT_BYTES: usize = 32 << 20;

impl Arena {
    /// Returns empty chunks that lanes keep to the host.
    pub fn trim(&self) {
        while let Some(frame) = self.refill() {
            self.free(frame);
        }
        self.empty_hands();
        self.trim_reserves();
        self.give_warm_back(u64::MAX);
        for (lane, apart) in self.lanes.iter().enumerate() {
            let whole = if lane == SPANS { SPANS_WHOLE } else { u64::MAX };
            loop {
                let taken = self.take_whole(&mut apart.0.lock(), whole);
                let Some(chunk) = taken else { break };
                self.give_back(chunk);
            }
        }
    }

    /// Removes an empty chunk from a lane.
    pub(super) fn take_whole(&self, head: &mut Lane, whole: u64) -> Option<u32> {
        let mut chunk = head.first;
        while chunk != NONE && self.chunk(chunk).free.load(Ordering::Relaxed) != whole {
            chunk = self.chunk(chunk).next.load(Ordering::Relaxed);
        }
        if chunk == NONE {
            return None;
        }
        self.unlink(head, chunk);
        head.free -= u64::from(whole.count_ones());
        Some(chunk)
    }

    /// A chunk of zeroed memory that is in no lane.
    pub(super) fn grow(&self, to: Use) -> Option<u32> {
        let mut taken = self.budget.take(CHUNK_BYTES as u64, to);
        if !taken && self.give_warm_back(1) != 0 {
            taken = self.budget.take(CHUNK_BYTES as u64, to);
        }
        self.check_low();
        if !taken {
            return None;
        }
        let (chunk, fresh) = self.spare_chunk().or_else(|| {
            self.budget.give(CHUNK_BYTES as u64);
            None
        })?;
        // Outside of all locks: this takes tens of microseconds.
        if fresh && self.populate_huge(chunk) {
            return Some(chunk);
        }
        if self.region.populate(chunk as usize * CHUNK_BYTES, CHUNK_BYTES).is_err() {
            self.give_back(chunk);
            return None;
        }
        Some(chunk)
    }

    /// Allocates a huge page if this chunk and the next ones fill one, which reduces TLB misses. Returns
    /// whether the chunk has its memory now.
    fn populate_huge(&self, chunk: u32) -> bool {
        let at = chunk as usize;
        if !at.is_multiple_of(HUGE_CHUNKS)
            || (at + HUGE_CHUNKS) * CHUNK_BYTES > self.region.bytes()
            || self.huge.load(Ordering::Relaxed) == 0
        {
            return false;
        }
        let done = self.region.populate_huge(at * CHUNK_BYTES, HUGE_BYTES);
        if !done {
            // If memory is fragmented, every attempt would take long.
            self.huge.store(0, Ordering::Relaxed);
        }
        done
    }

    /// A chunk that is in no lane and has no memory, and whether it was never used before.
    pub(super) fn spare_chunk(&self) -> Option<(u32, bool)> {
        let mut spare = self.spare.lock();
        if spare.first != NONE {
            let chunk = spare.first;
            spare.first = self.chunk(chunk).next.load(Ordering::Relaxed);
            return Some((chunk, false));
        }
        let chunk = spare.high;
        let end = (chunk as usize + 1) * CHUNK_BYTES;
        if end > self.region.bytes()
            || !self.chunks.grow(chunk as usize + 1, &self.budget, Use::Index)
            || !self.frames.grow(
                (chunk as usize + 1) * CHUNK_FRAMES as usize,
                &self.budget,
                Use::Index,
            )
        {
            return None;
        }
        if end > spare.committed_bytes {
            let step = COMMIT_BYTES.min(self.region.bytes() - spare.committed_bytes);
            self.region.commit(spare.committed_bytes, step).ok()?;
            spare.committed_bytes += step;
        }
        spare.high += 1;
        Some((chunk, true))
    }

    /// Returns the memory of a chunk in no lane to the host. It reads as zeros then.
    pub(super) fn release_chunk(&self, chunk: u32) {
        let first = chunk * CHUNK_FRAMES;
        if self.region.release(chunk as usize * CHUNK_BYTES, CHUNK_BYTES).is_err() {
            // Memory that the program locked (mlockall) cannot be given back.
            // SAFETY: the chunk is in no lane and all its frames are free, so it is ours alone.
            unsafe { core::ptr::write_bytes(self.address(first), 0, CHUNK_BYTES) };
        }
    }

    pub(super) fn give_back(&self, chunk: u32) {
        self.release_chunk(chunk);
        let mut spare = self.spare.lock();
        self.chunk(chunk).next.store(spare.first, Ordering::Relaxed);
        spare.first = chunk;
        self.budget.give(CHUNK_BYTES as u64);
    }
}
