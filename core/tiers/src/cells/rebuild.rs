//! Cells in memory that another process kept.
//!
//! The index tells which cells are in use and how long their content is; a span's beginning, how many
//! cells it has. What stands at the beginning of cells, and in the spans' state, is made anew.

use super::{
    CELL_BYTES_MAX, COUNT_BYTES, COUNT_MAX, COUNT_MIN, Cells, HEADER_BYTES, PLACE_BITS, SPAN_BYTES,
    address, cell_bytes, count_of, first_cell, link, place_of, span_of,
};
use crate::arena::{Arena, NONE, SPAN_FRAMES};
use crate::sync::Ordering;

/// Cells that were found in use, a bit for each place where one can begin.
#[derive(Debug)]
pub struct Claims {
    /// A bit for each cell.
    cells: Vec<u64>,
    /// Whether cells, and frames of long values, may have several references.
    pub(crate) shares: bool,
}

impl Claims {
    /// None yet. `shares` says whether the memory ever shared equal values: otherwise nothing has several references.
    pub fn new(arena: &Arena, shares: bool) -> Self {
        let words = (arena.frames_max() / SPAN_FRAMES as usize) << (PLACE_BITS - 6);
        Self { cells: vec![0; words], shares }
    }

    /// Whether there can be such a cell. All memory is committed while the arena is rebuilt.
    fn is_within(&self, arena: &Arena, cell: u32) -> bool {
        let span = span_of(cell);
        (span as usize) < arena.frames_max()
            && (COUNT_MIN..=COUNT_MAX).contains(&count_of(arena, span))
            && place_of(cell) < count_of(arena, span)
    }

    fn has(&self, cell: u32) -> bool {
        self.cells[cell as usize / 64] >> (cell % 64) & 1 != 0
    }

    /// Whether this is a cell that was found in use. No number is too large to ask for.
    fn has_within(&self, arena: &Arena, cell: u32) -> bool {
        self.is_within(arena, cell) && self.has(cell)
    }

    fn add(&mut self, cell: u32) {
        self.cells[cell as usize / 64] |= 1 << (cell % 64);
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
    /// Notes one more reference to a cell, which has `length` bytes of content; see
    /// [`Arena::take_over`](crate::Arena::take_over). False when that cannot be: only cells that are shared
    /// have more than one.
    #[must_use]
    pub fn claim(&self, arena: &Arena, claims: &mut Claims, cell: u32, length: usize) -> bool {
        if claims.has_within(arena, cell) {
            let meta = self.meta(arena, cell);
            let known = meta.next.load(Ordering::Relaxed) as usize == length;
            return known && claims.shares && meta.add_reference();
        }
        let claimed = self.claim_alone(arena, claims, cell, length);
        if claimed {
            self.meta(arena, cell).next.store(length as u32, Ordering::Relaxed);
        }
        claimed
    }

    /// The same for a cell that nobody else can hold.
    #[must_use]
    pub(crate) fn claim_alone(
        &self,
        arena: &Arena,
        claims: &mut Claims,
        cell: u32,
        length: usize,
    ) -> bool {
        if !(1..=CELL_BYTES_MAX).contains(&length) || !claims.is_within(arena, cell) {
            return false;
        }
        let span = span_of(cell);
        let bytes = cell_bytes(count_of(arena, span));
        if HEADER_BYTES + length > bytes || arena.claim_span(span).is_none() || claims.has(cell) {
            return false;
        }
        let state = arena.meta(span + 1);
        claims.add(cell);
        state.next.fetch_add(1, Ordering::Relaxed);
        self.meta(arena, cell).reset(1);
        // SAFETY: the bytes between the content's end and the cell's belong to this cell alone, and
        // nobody reads them.
        unsafe {
            let end = address(arena, cell).add(HEADER_BYTES + length);
            core::ptr::write_bytes(end, 0, bytes - HEADER_BYTES - length);
        }
        true
    }

    /// Makes all cells free, and zero, that were not claimed. Called before [`Arena::settle`].
    pub fn settle(&self, arena: &Arena, claims: &Claims) {
        for span in arena.claimed_spans() {
            let state = arena.meta(span + 1);
            let live = state.next.load(Ordering::Relaxed) as usize;
            let count = count_of(arena, span);
            let mut free = NONE;
            for place in (0..count).rev() {
                let cell = first_cell(span) + place as u32;
                if claims.has(cell) {
                    continue;
                }
                // SAFETY: nothing in the index names the cell, so it is ours alone.
                unsafe { core::ptr::write_bytes(address(arena, cell), 0, cell_bytes(count)) };
                self.meta(arena, cell).next.store(free, Ordering::Relaxed);
                free = cell;
            }
            let used = COUNT_BYTES + count * cell_bytes(count);
            // SAFETY: the end of a span that is too short for another cell is nobody's.
            unsafe { core::ptr::write_bytes(arena.address(span).add(used), 0, SPAN_BYTES - used) };
            arena.meta(span).back.store(free, Ordering::Relaxed);
            state.back.store(count as u32, Ordering::Relaxed);
            if live < count {
                link(arena, &mut self.classes[count].lock(), span);
            }
        }
    }
}
