//! Empties chunks of their frames, so that spans can be cut from them.
//!
//! Packing frees single frames, wherever they lie, and packed pages need whole spans. So pages are packed
//! a chunk at a time. Its other pages move to frames that packing freed in the previous chunk: the
//! *stock*, which only packing uses until there are spans for the next packed pages.

use super::{Arena, CHUNK_BYTES, CHUNK_FRAMES, CHUNK_SPANS, LANES, LEAVING, NONE, SPANS, STOCK};
use crate::sync::Ordering;

/// A chunk from which no frames are allocated while it is emptied. Pages that are left in it when this
/// is dropped stay there.
#[derive(Debug)]
pub struct Emptying<'a> {
    arena: &'a Arena,
    chunk: u32,
}

impl Arena {
    /// Starts emptying the chunk of a frame. `None` if it is not a chunk of an ordinary lane.
    pub fn empty_chunk_of(&self, frame: u32) -> Option<Emptying<'_>> {
        let chunk = frame / CHUNK_FRAMES;
        let entry = self.chunk(chunk);
        loop {
            let lane = entry.lane.load(Ordering::Acquire) as usize;
            if lane >= LANES && lane != STOCK {
                return None;
            }
            let mut head = self.lanes[lane].0.lock();
            // Another lane may have taken the chunk over meanwhile.
            if entry.lane.load(Ordering::Relaxed) as usize != lane {
                continue;
            }
            let free = u64::from(entry.free.load(Ordering::Relaxed).count_ones());
            if free != 0 {
                self.unlink(&mut head, chunk);
                head.free -= free;
            }
            entry.lane.store(LEAVING as u32, Ordering::Release);
            drop(head);
            self.lanes[LEAVING].0.lock().free += free;
            return Some(Emptying { arena: self, chunk });
        }
    }

    /// Takes a frame for a page that leaves its chunk, and fills it: of the stock or, when spans are
    /// wanted, one that anybody could have.
    pub fn store_moved(&self, page: &[u8; spillway_types::PAGE_BYTES]) -> Option<u32> {
        let frame = match self.take_stock() {
            Some(frame) => frame,
            None if self.has_spans() => return None,
            None => self.take_any()?,
        };
        self.fill(frame, page);
        Some(frame)
    }

    fn take_stock(&self) -> Option<u32> {
        let mut head = self.lanes[STOCK].0.lock();
        let (chunk, bit) = self.take_free_of(&mut head)?;
        let entry = self.chunk(chunk);
        if entry.free.load(Ordering::Relaxed) == 0 {
            entry.lane.store(common_lane(chunk), Ordering::Release);
        }
        Some(chunk * CHUNK_FRAMES + bit)
    }

    /// Whether packing finds as many spans as a chunk has.
    pub fn has_spans(&self) -> bool {
        self.has_chunk_for_packing() || self.lanes[SPANS].0.lock().free >= CHUNK_SPANS
    }

    /// Releases the rest of the stock.
    pub fn release_stock(&self) {
        loop {
            let mut stock = self.lanes[STOCK].0.lock();
            let chunk = stock.first;
            if chunk == NONE {
                return;
            }
            let entry = self.chunk(chunk);
            let free = u64::from(entry.free.load(Ordering::Relaxed).count_ones());
            self.unlink(&mut stock, chunk);
            stock.free -= free;
            // Nobody else holds the stock's lock and another.
            let lane = common_lane(chunk);
            let mut head = self.lanes[lane as usize].0.lock();
            entry.lane.store(lane, Ordering::Release);
            self.link(&mut head, chunk);
            head.free += free;
        }
    }
}

/// The lane of a chunk that all take frames from.
const fn common_lane(chunk: u32) -> u32 {
    chunk % LANES as u32
}

impl Emptying<'_> {
    /// The frames of the chunk that are not free now.
    pub fn frames(&self) -> impl Iterator<Item = u32> + use<> {
        let free = self.arena.chunk(self.chunk).free.load(Ordering::Relaxed);
        let first = self.chunk * CHUNK_FRAMES;
        (0..CHUNK_FRAMES).filter(move |bit| free >> bit & 1 == 0).map(move |bit| first + bit)
    }
}

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        let (arena, chunk) = (self.arena, self.chunk);
        if self.frames().any(|frame| arena.meta(frame).references() == 0) {
            // They were freed before, and are in a core's cache.
            arena.empty_hands();
        }
        let entry = arena.chunk(chunk);
        let mut head = arena.lanes[LEAVING].0.lock();
        let free = entry.free.load(Ordering::Relaxed);
        let count = u64::from(free.count_ones());
        head.free -= count;
        if free == u64::MAX && !arena.has_spans() {
            drop(head);
            // SAFETY: all its frames are free and it is in no list: it is ours alone. Whoever takes a span
            // wants zeros.
            unsafe { core::ptr::write_bytes(arena.address(chunk * CHUNK_FRAMES), 0, CHUNK_BYTES) };
            arena.enter(SPANS, chunk);
            return;
        }
        let lane = if free != 0 && !arena.has_spans() { STOCK as u32 } else { common_lane(chunk) };
        let mut to = arena.lanes[lane as usize].0.lock();
        entry.lane.store(lane, Ordering::Release);
        if free != 0 {
            arena.link(&mut to, chunk);
            to.free += count;
        }
    }
}
