//! Cells: pieces of memory shorter than a page, for small values and packed pages.
//!
//! A span of sixteen frames is cut into as many equal cells as it has room for: how many is the span's
//! *count*, and stands at its beginning. A cell begins with the same [`Meta`] that a frame has. Cells are
//! zeroed when they are freed.

mod dedup;
mod rebuild;

use core::ops::{Deref, Range};
use std::io;

pub use dedup::SHARED_BYTES_MIN;
use dedup::Shared;
pub use rebuild::Claims;

use crate::arena::{Arena, NONE, SPAN_FRAMES};
use crate::budget::Use;
use crate::meta::Meta;
use crate::sync::{AtomicU32, Lock, Ordering};
use spillway_types::PAGE_BYTES;

/// Cells are multiples of this many bytes.
const GRAIN_BYTES: usize = 16;
/// The longest that a value and its header can be. Three quarters of a page: packing that saves less does
/// not pay for the time to unpack.
const LARGEST_BYTES: usize = 3072;
const SPAN_BYTES: usize = SPAN_FRAMES as usize * PAGE_BYTES;
/// Bytes of a span that are not cells: its count.
const COUNT_BYTES: usize = GRAIN_BYTES;
/// Bits of a cell's number below those of its span's.
const PLACE_BITS: u32 = 10;
/// Most cells of a span.
const COUNT_MAX: usize = (1 << PLACE_BITS) - 1;
/// Fewest.
const COUNT_MIN: usize = (SPAN_BYTES - COUNT_BYTES) / LARGEST_BYTES;
/// A cell is a little longer than another if it is by no more than this part.
const LITTLE_PART: usize = 16;
const HEADER_BYTES: usize = size_of::<Meta>();
/// Most bytes of content that a cell takes.
pub const CELL_BYTES_MAX: usize = LARGEST_BYTES - HEADER_BYTES;

/// Spans of one count that have free cells.
#[derive(Debug)]
struct Class {
    first: u32,
}

/// All cells of an arena. A span's state lies in the [`Meta`] of its first frames, which have no
/// other use for it: frame 0 has the list links (`prev`, `next`) and the first free cell (`back`),
/// frame 1 the cells in use (`next`) and the cells ever used (`back`).
#[derive(Debug)]
pub struct Cells {
    /// By count.
    classes: Box<[Lock<Class>]>,
    shared: Option<Shared>,
}

impl Default for Cells {
    fn default() -> Self {
        let class = |_| Lock::new(Class { first: NONE });
        Self { classes: (0..=COUNT_MAX).map(class).collect(), shared: None }
    }
}

/// How many cells for `length` bytes of content a span has room for.
fn count_for(length: usize) -> usize {
    let bytes = (HEADER_BYTES + length).next_multiple_of(GRAIN_BYTES);
    ((SPAN_BYTES - COUNT_BYTES) / bytes).min(COUNT_MAX)
}

/// Bytes of memory that `length` bytes of content, at most [`CELL_BYTES_MAX`], take at least.
pub fn least_cell_bytes(length: usize) -> usize {
    cell_bytes(count_for(length))
}

const fn cell_bytes(count: usize) -> usize {
    (SPAN_BYTES - COUNT_BYTES) / count / GRAIN_BYTES * GRAIN_BYTES
}

const fn span_of(cell: u32) -> u32 {
    (cell >> PLACE_BITS) * SPAN_FRAMES
}

const fn place_of(cell: u32) -> usize {
    cell as usize & COUNT_MAX
}

const fn first_cell(span: u32) -> u32 {
    (span / SPAN_FRAMES) << PLACE_BITS
}

/// The word at the beginning of a span that holds its count.
fn count_word(arena: &Arena, span: u32) -> &AtomicU32 {
    // SAFETY: a span begins with its count, and stays mapped as long as the arena.
    unsafe { &*arena.address(span).cast::<AtomicU32>() }
}

fn count_of(arena: &Arena, span: u32) -> usize {
    count_word(arena, span).load(Ordering::Relaxed) as usize
}

fn address(arena: &Arena, cell: u32) -> *mut u8 {
    let span = span_of(cell);
    let offset = COUNT_BYTES + place_of(cell) * cell_bytes(count_of(arena, span));
    debug_assert!(offset < SPAN_BYTES);
    // SAFETY: the offset lies within the span whose address this is.
    unsafe { arena.address(span).add(offset) }
}

impl Cells {
    /// The cells of an arena. With `shares`, [`Self::store_shared`] finds equal content.
    ///
    /// # Errors
    /// When address space is refused.
    pub fn open(arena: &Arena, shares: bool) -> io::Result<Self> {
        let open = || Shared::open(arena.frames_max());
        Ok(Self { shared: shares.then(open).transpose()?, ..Self::default() })
    }

    /// What is known about `cell`.
    pub fn meta<'a>(&self, arena: &'a Arena, cell: u32) -> &'a Meta {
        // SAFETY: a cell begins with its Meta, whose fields are atomic; span memory is zeroed
        // before the first use, and stays mapped as long as the arena.
        unsafe { &*address(arena, cell).cast::<Meta>() }
    }

    /// The time of a cell's last use, for whoever holds no lock that keeps it: none, or any time, when it was freed meanwhile
    /// and its memory is another's.
    pub fn stamp(&self, arena: &Arena, cell: u32) -> Option<u16> {
        let (span, place) = (span_of(cell), place_of(cell));
        // Read once: it may change at any moment.
        let count = count_of(arena, span);
        if place >= count || count > COUNT_MAX {
            return None;
        }
        let offset = COUNT_BYTES + place * cell_bytes(count);
        // SAFETY: the offset is that of one of the cells that a span of this count has, so it lies within the span, which stays
        // mapped as long as the arena. The field is atomic.
        let meta = unsafe { &*arena.address(span).add(offset).cast::<Meta>() };
        Some(meta.stamp.load(Ordering::Relaxed))
    }

    /// Takes a cell and fills it with `content`. `None` when memory is out.
    ///
    /// # Panics
    /// When `content` is longer than [`CELL_BYTES_MAX`].
    pub fn store(&self, arena: &Arena, content: &[u8]) -> Option<u32> {
        self.store_for(arena, content, Use::Frames)
    }

    /// Like [`Self::store`], for the bytes of a page that frees its frame then: this has memory of its own
    /// when there is none for others.
    ///
    /// # Panics
    /// As for [`Self::store`].
    pub fn store_packed(&self, arena: &Arena, content: &[u8]) -> Option<u32> {
        self.store_for(arena, content, Use::Packing)
    }

    /// Like [`Self::store`], or for a packed page [`Self::store_packed`], but gives a reference to a cell of
    /// equal content and the same sharing domain if there is one. Also tells whether that is so.
    ///
    /// # Panics
    /// As for [`Self::store`].
    pub fn store_shared(
        &self,
        arena: &Arena,
        domain: u16,
        content: &[u8],
        packed: bool,
    ) -> Option<(u32, bool)> {
        let to = if packed { Use::Packing } else { Use::Frames };
        let place = self.shared.as_ref().and_then(|shared| Some((shared, shared.bucket(content)?)));
        let Some((shared, bucket)) = place else {
            return self.store_for(arena, content, to).map(|cell| (cell, false));
        };
        if let Some(cell) = shared.find((self, arena), bucket, domain, content, None) {
            return Some((cell, true));
        }
        let cell = self.store_for(arena, content, to)?;
        shared.insert(arena.budget(), bucket, domain, (cell, content.len()));
        Some((cell, false))
    }

    /// A reference to a cell of equal content and the same sharing domain, but for `except`.
    pub fn find_shared(
        &self,
        arena: &Arena,
        domain: u16,
        content: &[u8],
        except: Option<u32>,
    ) -> Option<u32> {
        let shared = self.shared.as_ref()?;
        shared.find((self, arena), shared.bucket(content)?, domain, content, except)
    }

    /// Lets others find the first `length` bytes of a cell, if cells are shared.
    pub fn share(&self, arena: &Arena, cell: u32, domain: u16, length: usize) {
        let Some(shared) = &self.shared else { return };
        if let Some(bucket) = shared.bucket(&self.content(arena, cell)[..length]) {
            shared.insert(arena.budget(), bucket, domain, (cell, length));
        }
    }

    fn store_for(&self, arena: &Arena, content: &[u8], to: Use) -> Option<u32> {
        assert!(content.len() <= CELL_BYTES_MAX);
        let count = count_for(content.len());
        let cell = self.take(arena, count, to)?;
        // SAFETY: the cell was just taken off the free list, so nobody else reads or writes it,
        // and its class has room for all.
        unsafe {
            let at = address(arena, cell).add(HEADER_BYTES);
            core::ptr::copy_nonoverlapping(content.as_ptr(), at, content.len());
        }
        self.meta(arena, cell).first_reference();
        Some(cell)
    }

    /// Writes to a cell, from byte `offset` of its content on.
    ///
    /// # Safety
    /// The caller holds the only reference, and nobody else knows the cell.
    ///
    /// # Panics
    /// When the cell is shorter than that.
    pub(crate) unsafe fn write(&self, arena: &Arena, cell: u32, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.content(arena, cell).len());
        // SAFETY: it lies within the cell, which nobody else reads or writes.
        unsafe {
            let at = address(arena, cell).add(HEADER_BYTES + offset);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        }
    }

    /// Adds a reference to a cell that has one, for reading `length` bytes of it. `None` when there
    /// are too many.
    pub fn pin<'a>(&'a self, arena: &'a Arena, cell: u32, length: usize) -> Option<CellPin<'a>> {
        let pinned = self.meta(arena, cell).add_reference();
        pinned.then(|| self.adopt(arena, cell, length))
    }

    /// Makes a reference that the caller holds one for reading `length` bytes.
    pub const fn adopt<'a>(&'a self, arena: &'a Arena, cell: u32, length: usize) -> CellPin<'a> {
        CellPin { cells: self, arena, cell, length }
    }

    /// Drops a reference that the caller holds to a cell with `length` bytes of content; the last one frees
    /// the cell.
    pub fn release(&self, arena: &Arena, cell: u32, length: usize) {
        if !self.meta(arena, cell).drop_reference() {
            return;
        }
        if let Some(shared) = &self.shared {
            shared.remove(cell, &self.content(arena, cell)[..length]);
        }
        self.free(arena, cell);
    }

    /// The content of a cell to which the caller holds a reference: all bytes to its end.
    pub fn content<'a>(&self, arena: &'a Arena, cell: u32) -> &'a [u8] {
        let bytes = cell_bytes(count_of(arena, span_of(cell))) - HEADER_BYTES;
        // SAFETY: a cell that is in use keeps its content, and it is as long as its class says.
        unsafe { core::slice::from_raw_parts(address(arena, cell).add(HEADER_BYTES), bytes) }
    }

    fn take(&self, arena: &Arena, count: usize, to: Use) -> Option<u32> {
        if let Some(cell) = self.take_free(arena, count) {
            return Some(cell);
        }
        // While memory is out for others, a cell that is a little longer does; of the last spans, any.
        let little = if arena.spans_are_scarce() { COUNT_MIN } else { count - count / LITTLE_PART };
        if !arena.grows()
            && let Some(cell) = self.take_longer(arena, little..count)
        {
            return Some(cell);
        }
        let Some(span) = arena.take_span(to) else {
            return self.take_longer(arena, COUNT_MIN..little);
        };
        count_word(arena, span).store(count as u32, Ordering::Relaxed);
        let mut head = self.classes[count].lock();
        arena.meta(span).back.store(NONE, Ordering::Relaxed);
        let state = arena.meta(span + 1);
        state.next.store(0, Ordering::Relaxed);
        state.back.store(0, Ordering::Relaxed);
        link(arena, &mut head, span);
        self.take_of(arena, &mut head, count)
    }

    /// A free cell in a span of fewer cells, as short as there is one.
    fn take_longer(&self, arena: &Arena, counts: Range<usize>) -> Option<u32> {
        counts.rev().find_map(|count| self.take_free(arena, count))
    }

    fn take_free(&self, arena: &Arena, count: usize) -> Option<u32> {
        self.take_of(arena, &mut self.classes[count].lock(), count)
    }

    fn take_of(&self, arena: &Arena, head: &mut Class, count: usize) -> Option<u32> {
        let span = head.first;
        if span == NONE {
            return None;
        }
        let list = arena.meta(span);
        let state = arena.meta(span + 1);
        let free = list.back.load(Ordering::Relaxed);
        let cell = if free == NONE {
            let used = state.back.load(Ordering::Relaxed);
            state.back.store(used + 1, Ordering::Relaxed);
            first_cell(span) + used
        } else {
            list.back.store(self.meta(arena, free).next.load(Ordering::Relaxed), Ordering::Relaxed);
            free
        };
        let live = state.next.load(Ordering::Relaxed) + 1;
        state.next.store(live, Ordering::Relaxed);
        if live as usize == count {
            unlink(arena, head, span);
        }
        Some(cell)
    }

    /// Frees a cell that nobody finds, whose last reference the caller dropped.
    pub(crate) fn free(&self, arena: &Arena, cell: u32) {
        let span = span_of(cell);
        let state = arena.meta(span + 1);
        let count = count_of(arena, span);
        // SAFETY: the last reference is gone, so nobody else reads or writes the cell.
        unsafe {
            let content = address(arena, cell).add(HEADER_BYTES);
            core::ptr::write_bytes(content, 0, cell_bytes(count) - HEADER_BYTES);
        }
        let mut head = self.classes[count].lock();
        let list = arena.meta(span);
        let free = list.back.load(Ordering::Relaxed);
        self.meta(arena, cell).next.store(free, Ordering::Relaxed);
        list.back.store(cell, Ordering::Relaxed);
        let live = state.next.load(Ordering::Relaxed) - 1;
        state.next.store(live, Ordering::Relaxed);
        if live as usize + 1 == count {
            link(arena, &mut head, span);
        }
        if live == 0 {
            unlink(arena, &mut head, span);
            drop(head);
            // SAFETY: no cell of the span is in use and no list knows it: it is ours alone.
            // Headers of freed cells are left in it, and the next user wants zeros.
            unsafe { core::ptr::write_bytes(arena.address(span), 0, SPAN_BYTES) };
            arena.free_span(span);
        }
    }
}

fn link(arena: &Arena, head: &mut Class, span: u32) {
    let meta = arena.meta(span);
    meta.prev.store(NONE, Ordering::Relaxed);
    meta.next.store(head.first, Ordering::Relaxed);
    if head.first != NONE {
        arena.meta(head.first).prev.store(span, Ordering::Relaxed);
    }
    head.first = span;
}

fn unlink(arena: &Arena, head: &mut Class, span: u32) {
    let meta = arena.meta(span);
    let prev = meta.prev.load(Ordering::Relaxed);
    let next = meta.next.load(Ordering::Relaxed);
    if prev == NONE {
        head.first = next;
    } else {
        arena.meta(prev).next.store(next, Ordering::Relaxed);
    }
    if next != NONE {
        arena.meta(next).prev.store(prev, Ordering::Relaxed);
    }
}

/// A cell that cannot be freed while this lives.
#[derive(Debug)]
pub struct CellPin<'a> {
    cells: &'a Cells,
    arena: &'a Arena,
    cell: u32,
    length: usize,
}

impl CellPin<'_> {
    /// References to the cell now, this one included.
    pub fn references(&self) -> u16 {
        self.cells.meta(self.arena, self.cell).references()
    }
}

impl Deref for CellPin<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.cells.content(self.arena, self.cell)[..self.length]
    }
}

impl Drop for CellPin<'_> {
    fn drop(&mut self) {
        self.cells.release(self.arena, self.cell, self.length);
    }
}
