//! An arena in memory that another process kept.
//!
//! The metadata of frames and chunks was lost with that process, and is rebuilt from the index:
//! first all frames in use are claimed, then the rest is freed and zeroed.

use super::reserve::{RESERVES_MAX, Reserve};
use super::{
    Arena, CHUNK_BYTES, CHUNK_FRAMES, CHUNK_SPANS, LANES, RESERVED, SPAN_FRAMES, SPANS, SPANS_WHOLE,
};
use crate::sync::Ordering;
use spillway_types::PAGE_BYTES;

impl Arena {
    /// Adds a reference of an index entry to a frame; `reserve` is its reserve, 0 for none. Returns
    /// the references so far, or `None` if that is impossible: the frame does not exist, or its
    /// memory serves another purpose.
    #[must_use]
    pub fn claim(&self, frame: u32, reserve: u16) -> Option<u16> {
        if frame as usize >= self.frames_max() || usize::from(reserve) >= RESERVES_MAX {
            return None;
        }
        let chunk = frame / CHUNK_FRAMES;
        let lane = match reserve {
            0 => chunk as usize % LANES,
            number => RESERVED + usize::from(number),
        };
        self.claim_of(chunk, frame % CHUNK_FRAMES, lane)?;
        let meta = self.meta(frame);
        meta.add_reference().then(|| meta.references())
    }

    /// Marks a span as in use. Returns whether that is new, or `None` if it is impossible.
    pub(crate) fn claim_span(&self, span: u32) -> Option<bool> {
        self.claim_of(span / CHUNK_FRAMES, span % CHUNK_FRAMES / SPAN_FRAMES, SPANS)
    }

    /// Marks a bit of a chunk as in use, and the chunk as one of `lane`. Gives whether it was free.
    fn claim_of(&self, chunk: u32, bit: u32, lane: usize) -> Option<bool> {
        let mut spare = self.spare.lock();
        if chunk >= spare.high {
            let frames = (chunk as usize + 1) * CHUNK_FRAMES as usize;
            let known = self.chunks.restore(chunk as usize + 1, &self.budget)
                && self.frames.restore(frames, &self.budget);
            if !known {
                return None;
            }
            spare.high = chunk + 1;
        }
        let entry = self.chunk(chunk);
        if entry.claimed.swap(1, Ordering::Relaxed) == 0 {
            let whole = if lane == SPANS { SPANS_WHOLE } else { u64::MAX };
            entry.lane.store(lane as u32, Ordering::Relaxed);
            entry.free.store(whole, Ordering::Relaxed);
            self.budget.charge(CHUNK_BYTES as u64);
        }
        if entry.lane.load(Ordering::Relaxed) as usize != lane {
            return None;
        }
        let free = entry.free.load(Ordering::Relaxed);
        entry.free.store(free & !(1 << bit), Ordering::Relaxed);
        Some(free >> bit & 1 != 0)
    }

    /// Spans that were claimed.
    pub(crate) fn claimed_spans(&self) -> impl Iterator<Item = u32> + '_ {
        let of_spans = |&chunk: &u32| {
            let entry = self.chunk(chunk);
            entry.claimed.load(Ordering::Relaxed) != 0
                && entry.lane.load(Ordering::Relaxed) as usize == SPANS
        };
        let chunks = (0..self.spare.lock().high).filter(of_spans);
        chunks.flat_map(move |chunk| {
            let free = self.chunk(chunk).free.load(Ordering::Relaxed);
            let claimed = (0..CHUNK_SPANS as u32).filter(move |bit| free >> bit & 1 == 0);
            claimed.map(move |bit| chunk * CHUNK_FRAMES + bit * SPAN_FRAMES)
        })
    }

    /// Frees and zeroes everything that was not claimed: first chunks, adjacent ones together, then
    /// frames and spans within chunks.
    pub fn settle(&self) {
        let high = self.spare.lock().high;
        let is_claimed = |chunk: u32| self.chunk(chunk).claimed.load(Ordering::Relaxed) != 0;
        let mut chunk = 0;
        while chunk < high {
            let end = (chunk..high).find(|&chunk| is_claimed(chunk)).unwrap_or(high);
            self.release_chunks(chunk, end);
            let mut spare = self.spare.lock();
            for free in (chunk..end).rev() {
                self.chunk(free).next.store(spare.first, Ordering::Relaxed);
                spare.first = free;
            }
            drop(spare);
            chunk = end;
            while chunk < high && is_claimed(chunk) {
                self.settle_chunk(chunk);
                chunk += 1;
            }
        }
        self.release_chunks(high, (self.region.bytes() / CHUNK_BYTES) as u32);
    }

    fn release_chunks(&self, first: u32, end: u32) {
        let (at, bytes) = (first as usize * CHUNK_BYTES, (end - first) as usize * CHUNK_BYTES);
        if bytes != 0 && self.region.release(at, bytes).is_err() {
            (first..end).for_each(|chunk| self.release_chunk(chunk));
        }
    }

    /// Makes the rest of a chunk free that has something in use.
    fn settle_chunk(&self, chunk: u32) {
        let entry = self.chunk(chunk);
        entry.claimed.store(0, Ordering::Relaxed);
        let lane = entry.lane.load(Ordering::Relaxed) as usize;
        let unit = if lane == SPANS { SPAN_FRAMES } else { 1 };
        let free = entry.free.load(Ordering::Relaxed);
        for bit in (0..CHUNK_FRAMES / unit).filter(|bit| free >> bit & 1 != 0) {
            let first = self.address(chunk * CHUNK_FRAMES + bit * unit);
            // SAFETY: nothing in the index names the frames, so they are ours alone.
            unsafe { core::ptr::write_bytes(first, 0, unit as usize * PAGE_BYTES) };
        }
        let count = u64::from(free.count_ones());
        if lane > RESERVED {
            self.reserves[lane - RESERVED].settle(self, chunk, count);
        } else if count != 0 {
            let mut head = self.lanes[lane].0.lock();
            head.free += count;
            self.link(&mut head, chunk);
        }
    }

    /// Opens reserve `number` again, with `frames` set aside, what it has already among them.
    /// Called after [`Self::settle`]. False when there is no room for it, or it is open already.
    #[must_use]
    pub fn restore_reserve(&self, number: u16, frames: u64) -> bool {
        let reserve = self.reserves.get(usize::from(number));
        let Some((reserve, chunks)) = reserve.zip(Reserve::chunks_for(frames)) else {
            return false;
        };
        let high = self.reserves_high.load(Ordering::Relaxed).max(number.into());
        self.reserves_high.store(high, Ordering::Release);
        reserve.open_again(self, number, chunks)
    }

    /// Makes a page findable, if it is not yet and the arena shares frames. Two tasks must not do this for
    /// the same frame at once.
    pub fn share(&self, frame: u32, domain: u16) {
        if let Some(shared) = self.shared.as_ref().filter(|shared| shared.domain(frame).is_none()) {
            shared.insert(&self.budget, shared.bucket(self.content(frame)), domain, frame);
        }
    }

    /// A chunk without memory for a reserve, charged even if it does not fit, because it did
    /// before.
    pub(super) fn chunk_in_any_case(&self) -> Option<u32> {
        let high = self.spare.lock().high as usize + 1;
        let known = self.chunks.restore(high.min(self.chunks.room()), &self.budget)
            && self
                .frames
                .restore((high * CHUNK_FRAMES as usize).min(self.frames.room()), &self.budget);
        let (chunk, _) = if known { self.spare_chunk()? } else { return None };
        self.budget.charge(CHUNK_BYTES as u64);
        Some(chunk)
    }
}
