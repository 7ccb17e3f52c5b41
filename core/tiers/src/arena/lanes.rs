//! The lists of chunks: which have something free, by lane.

use super::{Arena, CHUNK_FRAMES, LANES, LEAVING, Lane, NONE, RESERVED, SPANS, SPANS_WHOLE, STOCK};
use crate::budget::Use;
use crate::sync::Ordering;

impl Arena {
    pub(super) fn take(&self, lane: usize) -> Option<u32> {
        if let Some(frame) = self.take_at_hand(lane) {
            return Some(frame);
        }
        let own = lane % LANES;
        let taken = self.take_free(own).or_else(|| self.take_from_others(own));
        match taken.or_else(|| self.take_from(own, Use::Frames)) {
            Some((chunk, bit)) => Some(chunk * CHUNK_FRAMES + bit),
            // Memory is out; another lane may have frames again.
            None => self.take_any().or_else(|| self.refill()),
        }
    }

    /// Makes another lane's chunk one of lane `own`, with a free frame that the caller gets. A
    /// program that moved to another core finds the frames there that it frees, and memory does not
    /// grow while there are some.
    fn take_from_others(&self, own: usize) -> Option<(u32, u32)> {
        self.check_low();
        (1..LANES).find_map(|step| {
            let other = (own + step) % LANES;
            // Both at once, so that the chunk is never in between. Nobody else holds two.
            let mut low = self.lanes[own.min(other)].0.lock();
            let mut high = self.lanes[own.max(other)].0.lock();
            let (to, from) =
                if own < other { (&mut *low, &mut *high) } else { (&mut *high, &mut *low) };
            let chunk = from.first;
            if chunk == NONE {
                return None;
            }
            let entry = self.chunk(chunk);
            let count = u64::from(entry.free.load(Ordering::Relaxed).count_ones());
            self.unlink(from, chunk);
            from.free -= count;
            entry.lane.store(own as u32, Ordering::Release);
            self.link(to, chunk);
            to.free += count;
            self.take_free_of(to)
        })
    }

    /// A free frame of any lane.
    pub(super) fn take_any(&self) -> Option<u32> {
        let free = (0..LANES).find_map(|lane| self.take_free(lane));
        free.map(|(chunk, bit)| chunk * CHUNK_FRAMES + bit).or_else(|| self.take_at_any_hand())
    }

    pub(super) fn take_from(&self, lane: usize, to: Use) -> Option<(u32, u32)> {
        self.take_free(lane).or_else(|| self.grow_lane(lane, to))
    }

    /// Gives a lane another chunk, and takes of it.
    pub(super) fn grow_lane(&self, lane: usize, to: Use) -> Option<(u32, u32)> {
        loop {
            // A frame is written before it is read; a span must be all zeros.
            let warm = if lane < LANES { self.take_warm() } else { None };
            let chunk = warm.or_else(|| self.grow(to))?;
            self.enter(lane, chunk);
            if let Some(taken) = self.take_free(lane) {
                return Some(taken);
            }
        }
    }

    /// Makes a chunk that is in no lane, and all free, one of `lane`.
    pub(super) fn enter(&self, lane: usize, chunk: u32) {
        let whole = if lane == SPANS { SPANS_WHOLE } else { u64::MAX };
        let mut head = self.lanes[lane].0.lock();
        let entry = self.chunk(chunk);
        entry.lane.store(lane as u32, Ordering::Relaxed);
        entry.free.store(whole, Ordering::Relaxed);
        head.free += u64::from(whole.count_ones());
        self.link(&mut head, chunk);
    }

    pub(super) fn take_free(&self, lane: usize) -> Option<(u32, u32)> {
        self.take_free_of(&mut self.lanes[lane].0.lock())
    }

    /// Takes free frames of a lane, as many as it has and there are places. Returns their number.
    pub(super) fn take_several(&self, lane: usize, places: &mut [u32]) -> usize {
        let mut head = self.lanes[lane % LANES].0.lock();
        let taken = places.iter_mut().map_while(|place| {
            let (chunk, bit) = self.take_free_of(&mut head)?;
            *place = chunk * CHUNK_FRAMES + bit;
            Some(())
        });
        taken.count()
    }

    pub(super) fn take_free_of(&self, head: &mut Lane) -> Option<(u32, u32)> {
        let chunk = head.first;
        if chunk == NONE {
            return None;
        }
        let entry = self.chunk(chunk);
        let free = entry.free.load(Ordering::Relaxed);
        let rest = free & (free - 1);
        entry.free.store(rest, Ordering::Relaxed);
        head.free -= 1;
        if rest == 0 {
            self.unlink(head, chunk);
        }
        Some((chunk, free.trailing_zeros()))
    }

    /// Frees one bit of a chunk; `whole` is the word of an empty chunk.
    pub(super) fn give(&self, chunk: u32, bit: u32, whole: u64) {
        let entry = self.chunk(chunk);
        let mut head = loop {
            let lane = entry.lane.load(Ordering::Acquire) as usize;
            if lane > RESERVED {
                return self.give_reserved((lane - RESERVED) as u16, chunk * CHUNK_FRAMES + bit);
            }
            let head = self.lanes[lane].0.lock();
            // Another lane may have taken the chunk over meanwhile.
            if entry.lane.load(Ordering::Relaxed) as usize == lane {
                break head;
            }
        };
        let before = entry.free.load(Ordering::Relaxed);
        let free = before | 1 << bit;
        entry.free.store(free, Ordering::Relaxed);
        head.free += 1;
        let lane = entry.lane.load(Ordering::Relaxed) as usize;
        if lane == LEAVING {
            return;
        }
        if before == 0 {
            self.link(&mut head, chunk);
        }
        // A lane keeps one empty chunk when it has no other, so that a frame that comes and goes
        // does not cost a system call each time.
        let alone = head.first == chunk && entry.next.load(Ordering::Relaxed) == NONE;
        if free == whole && !alone && lane != STOCK {
            self.unlink(&mut head, chunk);
            head.free -= u64::from(whole.count_ones());
            drop(head);
            if lane < LANES { self.retire(chunk) } else { self.give_back(chunk) }
        }
    }

    pub(super) fn link(&self, head: &mut Lane, chunk: u32) {
        let entry = self.chunk(chunk);
        entry.prev.store(NONE, Ordering::Relaxed);
        entry.next.store(head.first, Ordering::Relaxed);
        if head.first != NONE {
            self.chunk(head.first).prev.store(chunk, Ordering::Relaxed);
        }
        head.first = chunk;
    }

    pub(super) fn unlink(&self, head: &mut Lane, chunk: u32) {
        let entry = self.chunk(chunk);
        let prev = entry.prev.load(Ordering::Relaxed);
        let next = entry.next.load(Ordering::Relaxed);
        if prev == NONE {
            head.first = next;
        } else {
            self.chunk(prev).next.store(next, Ordering::Relaxed);
        }
        if next != NONE {
            self.chunk(next).prev.store(prev, Ordering::Relaxed);
        }
    }
}
