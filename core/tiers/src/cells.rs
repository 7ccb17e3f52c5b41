//! Cells: pieces of memory shorter than a page, for small values and packed pages.
//!
//! A span of eight frames is cut into cells of one size; sizes are multiples of 128 bytes. A cell
//! begins with the same [`Meta`] that a frame has. Cells are zeroed when they are freed.

mod rebuild;

use core::ops::Deref;

pub use rebuild::Claims;

use crate::arena::{Arena, NONE, SPAN_FRAMES};
use crate::meta::Meta;
use crate::sync::{Lock, Ordering};
use spillway_types::PAGE_BYTES;

/// Cells begin at, and are, multiples of this many bytes.
const GRAIN_BYTES: usize = 128;
/// The largest cell. Three quarters of a page: packing that saves less does not pay for the time
/// to unpack.
const LARGEST_BYTES: usize = 3072;
const CLASSES: usize = LARGEST_BYTES / GRAIN_BYTES;
const SPAN_BYTES: usize = SPAN_FRAMES as usize * PAGE_BYTES;
const HEADER_BYTES: usize = size_of::<Meta>();
/// Most bytes of content that a cell takes.
pub const CELL_BYTES_MAX: usize = LARGEST_BYTES - HEADER_BYTES;

/// Spans of one cell size that have free cells.
#[derive(Debug)]
struct Class {
    first: u32,
}

/// All cells of an arena. A span's state lies in the [`Meta`] of its first frames, which have no
/// other use for it: frame 0 has the list links (`prev`, `next`) and the first free cell (`back`),
/// frame 1 the class (`prev`), the cells in use (`next`) and the cells ever used (`back`).
#[derive(Debug)]
pub struct Cells {
    classes: [Lock<Class>; CLASSES],
}

impl Default for Cells {
    fn default() -> Self {
        Self { classes: core::array::from_fn(|_| Lock::new(Class { first: NONE })) }
    }
}

const fn cell_bytes(class: usize) -> usize {
    (class + 1) * GRAIN_BYTES
}

const fn span_of(cell: u32) -> u32 {
    let grains = (SPAN_BYTES / GRAIN_BYTES) as u32;
    cell / grains * SPAN_FRAMES
}

const fn first_cell(span: u32) -> u32 {
    span * (PAGE_BYTES / GRAIN_BYTES) as u32
}

fn address(arena: &Arena, cell: u32) -> *mut u8 {
    let offset = cell as usize * GRAIN_BYTES;
    // SAFETY: the offset lies within the frame whose address this is.
    unsafe { arena.address((offset / PAGE_BYTES) as u32).add(offset % PAGE_BYTES) }
}

impl Cells {
    /// What is known about `cell`.
    pub fn meta<'a>(&self, arena: &'a Arena, cell: u32) -> &'a Meta {
        // SAFETY: a cell begins with its Meta, whose fields are atomic; span memory is zeroed
        // before the first use, and stays mapped as long as the arena.
        unsafe { &*address(arena, cell).cast::<Meta>() }
    }

    /// Takes a cell and fills it with `content`. `None` when memory is out.
    ///
    /// # Panics
    /// When `content` is longer than [`CELL_BYTES_MAX`].
    pub fn store(&self, arena: &Arena, content: &[u8]) -> Option<u32> {
        assert!(content.len() <= CELL_BYTES_MAX);
        let class = (HEADER_BYTES + content.len()).div_ceil(GRAIN_BYTES) - 1;
        let cell = self.take(arena, class)?;
        // SAFETY: the cell was just taken off the free list, so nobody else reads or writes it,
        // and its class has room for all.
        unsafe {
            let at = address(arena, cell).add(HEADER_BYTES);
            core::ptr::copy_nonoverlapping(content.as_ptr(), at, content.len());
        }
        self.meta(arena, cell).first_reference();
        Some(cell)
    }

    /// Adds a reference to a cell that has one, for reading `length` bytes of it. `None` when there
    /// are too many.
    pub fn pin<'a>(&'a self, arena: &'a Arena, cell: u32, length: usize) -> Option<CellPin<'a>> {
        let pinned = self.meta(arena, cell).add_reference();
        pinned.then_some(CellPin { cells: self, arena, cell, length })
    }

    /// Makes a reference that the caller holds one for reading `length` bytes.
    pub const fn adopt<'a>(&'a self, arena: &'a Arena, cell: u32, length: usize) -> CellPin<'a> {
        CellPin { cells: self, arena, cell, length }
    }

    /// Drops a reference that the caller holds; the last one frees the cell.
    pub fn release(&self, arena: &Arena, cell: u32) {
        if self.meta(arena, cell).drop_reference() {
            self.free(arena, cell);
        }
    }

    /// The content of a cell to which the caller holds a reference: all bytes to its end.
    pub fn content<'a>(&self, arena: &'a Arena, cell: u32) -> &'a [u8] {
        let class = arena.meta(span_of(cell) + 1).prev.load(Ordering::Relaxed) as usize;
        let bytes = cell_bytes(class) - HEADER_BYTES;
        // SAFETY: a cell that is in use keeps its content, and it is as long as its class says.
        unsafe { core::slice::from_raw_parts(address(arena, cell).add(HEADER_BYTES), bytes) }
    }

    fn take(&self, arena: &Arena, class: usize) -> Option<u32> {
        let mut head = self.classes[class].lock();
        if head.first == NONE {
            drop(head);
            let span = arena.take_span()?;
            head = self.classes[class].lock();
            arena.meta(span).back.store(NONE, Ordering::Relaxed);
            let state = arena.meta(span + 1);
            state.prev.store(class as u32, Ordering::Relaxed);
            state.next.store(0, Ordering::Relaxed);
            state.back.store(0, Ordering::Relaxed);
            link(arena, &mut head, span);
        }
        let span = head.first;
        let list = arena.meta(span);
        let state = arena.meta(span + 1);
        let free = list.back.load(Ordering::Relaxed);
        let cell = if free == NONE {
            let used = state.back.load(Ordering::Relaxed);
            state.back.store(used + 1, Ordering::Relaxed);
            first_cell(span) + used * (class as u32 + 1)
        } else {
            list.back.store(self.meta(arena, free).next.load(Ordering::Relaxed), Ordering::Relaxed);
            free
        };
        let live = state.next.load(Ordering::Relaxed) + 1;
        state.next.store(live, Ordering::Relaxed);
        if live as usize == SPAN_BYTES / cell_bytes(class) {
            unlink(arena, &mut head, span);
        }
        Some(cell)
    }

    /// Frees a cell whose last reference the caller dropped.
    pub fn free(&self, arena: &Arena, cell: u32) {
        let span = span_of(cell);
        let state = arena.meta(span + 1);
        let class = state.prev.load(Ordering::Relaxed) as usize;
        // SAFETY: the last reference is gone, so nobody else reads or writes the cell.
        unsafe {
            let content = address(arena, cell).add(HEADER_BYTES);
            core::ptr::write_bytes(content, 0, cell_bytes(class) - HEADER_BYTES);
        }
        let mut head = self.classes[class].lock();
        let list = arena.meta(span);
        let free = list.back.load(Ordering::Relaxed);
        self.meta(arena, cell).next.store(free, Ordering::Relaxed);
        list.back.store(cell, Ordering::Relaxed);
        let live = state.next.load(Ordering::Relaxed) - 1;
        state.next.store(live, Ordering::Relaxed);
        if live as usize + 1 == SPAN_BYTES / cell_bytes(class) {
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

impl Deref for CellPin<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.cells.content(self.arena, self.cell)[..self.length]
    }
}

impl Drop for CellPin<'_> {
    fn drop(&mut self) {
        self.cells.release(self.arena, self.cell);
    }
}
