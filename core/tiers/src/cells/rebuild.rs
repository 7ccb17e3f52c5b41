//! Cells in memory that another process kept.
//!
//! The index tells which cells are in use and how long their content is, which gives their class;
//! what stands at their beginning, and in the spans' state, is made anew.

use super::{CELL_BYTES_MAX, link, span_of};
use super::{Cells, GRAIN_BYTES, HEADER_BYTES, SPAN_BYTES, address, cell_bytes, first_cell};
use crate::arena::{Arena, NONE};
use crate::sync::Ordering;
use spillway_types::PAGE_BYTES;

/// Cells that were found in use, a bit for each place where one can begin.
#[derive(Debug)]
pub struct Claims(Vec<u64>);

impl Claims {
    /// None yet.
    pub fn new(arena: &Arena) -> Self {
        Self(vec![0; (arena.frames_max() * PAGE_BYTES / GRAIN_BYTES).div_ceil(64)])
    }

    fn is_within(&self, arena: &Arena, cell: u32) -> bool {
        (cell as usize) < arena.frames_max() * (PAGE_BYTES / GRAIN_BYTES)
    }

    fn has(&self, cell: u32) -> bool {
        self.0[cell as usize / 64] >> (cell % 64) & 1 != 0
    }

    fn add(&mut self, cell: u32) {
        self.0[cell as usize / 64] |= 1 << (cell % 64);
    }

    /// The first word of what may be a cell's content.
    pub(crate) fn peek(&self, arena: &Arena, cell: u32) -> Option<u32> {
        // SAFETY: the cell lies within the arena, all of whose memory is committed while it is
        // rebuilt, and a cell is longer than its header and a word.
        let peek = || unsafe { address(arena, cell).add(HEADER_BYTES).cast::<u32>().read() };
        self.is_within(arena, cell).then(peek)
    }
}

impl Cells {
    /// Notes that a cell is in use and has `length` bytes of content; see
    /// [`Arena::take_over`](crate::Arena::take_over). False when that cannot be.
    #[must_use]
    pub fn claim(&self, arena: &Arena, claims: &mut Claims, cell: u32, length: usize) -> bool {
        if !(1..=CELL_BYTES_MAX).contains(&length) || !claims.is_within(arena, cell) {
            return false;
        }
        let class = (HEADER_BYTES + length).div_ceil(GRAIN_BYTES) - 1;
        let span = span_of(cell);
        let place = (cell - first_cell(span)) as usize;
        if !place.is_multiple_of(class + 1) || place / (class + 1) >= SPAN_BYTES / cell_bytes(class)
        {
            return false;
        }
        let Some(fresh) = arena.claim_span(span) else { return false };
        let state = arena.meta(span + 1);
        if fresh {
            state.prev.store(class as u32, Ordering::Relaxed);
        }
        if state.prev.load(Ordering::Relaxed) != class as u32 || claims.has(cell) {
            return false;
        }
        claims.add(cell);
        state.next.fetch_add(1, Ordering::Relaxed);
        self.meta(arena, cell).reset(1);
        // SAFETY: the bytes between the content's end and the cell's belong to this cell alone, and
        // nobody reads them.
        unsafe {
            let end = address(arena, cell).add(HEADER_BYTES + length);
            core::ptr::write_bytes(end, 0, cell_bytes(class) - HEADER_BYTES - length);
        }
        true
    }

    /// Makes all cells free, and zero, that were not claimed. Called before [`Arena::settle`].
    pub fn settle(&self, arena: &Arena, claims: &Claims) {
        for span in arena.claimed_spans() {
            let state = arena.meta(span + 1);
            let class = state.prev.load(Ordering::Relaxed) as usize;
            let live = state.next.load(Ordering::Relaxed) as usize;
            let count = SPAN_BYTES / cell_bytes(class);
            let mut free = NONE;
            for number in (0..count).rev() {
                let cell = first_cell(span) + (number * (class + 1)) as u32;
                if claims.has(cell) {
                    continue;
                }
                // SAFETY: nothing in the index names the cell, so it is ours alone.
                unsafe { core::ptr::write_bytes(address(arena, cell), 0, cell_bytes(class)) };
                self.meta(arena, cell).next.store(free, Ordering::Relaxed);
                free = cell;
            }
            let used = count * cell_bytes(class);
            // SAFETY: the end of a span that is too short for another cell is nobody's.
            unsafe { core::ptr::write_bytes(arena.address(span).add(used), 0, SPAN_BYTES - used) };
            arena.meta(span).back.store(free, Ordering::Relaxed);
            state.back.store(count as u32, Ordering::Relaxed);
            if live < count {
                link(arena, &mut self.classes[class].lock(), span);
            }
        }
    }
}
