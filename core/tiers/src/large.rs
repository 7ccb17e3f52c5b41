//! Values longer than a page: whole frames, a remainder, and a map of both in cells.
//!
//! The first cell of the map holds the length, the rest's number and the next cell's, then frame
//! numbers; the others hold the next cell's number and frame numbers. All are 32-bit words.

use core::ops::Range;

use crate::arena::{Arena, NONE};
use crate::cells::{CELL_BYTES_MAX, Cells, Claims};
use spillway_types::{PAGE_BYTES, VALUE_BYTES_MAX};

const WORD: usize = size_of::<u32>();
const FIRST_HEAD_WORDS: usize = 3;
const OTHER_HEAD_WORDS: usize = 1;
const FIRST_FRAMES: usize = CELL_BYTES_MAX / WORD - FIRST_HEAD_WORDS;
const OTHER_FRAMES: usize = CELL_BYTES_MAX / WORD - OTHER_HEAD_WORDS;

/// Where long values lie.
#[derive(Clone, Copy, Debug)]
pub struct Large<'a> {
    /// The memory.
    pub arena: &'a Arena,
    /// Its cells.
    pub cells: &'a Cells,
}

fn word(content: &[u8], at: usize) -> u32 {
    let (words, _) = content.as_chunks::<WORD>();
    u32::from_ne_bytes(words[at])
}

const fn head_words(number: usize) -> usize {
    if number == 0 { FIRST_HEAD_WORDS } else { OTHER_HEAD_WORDS }
}

/// Frames whose numbers stand in the first cell and in each other, for `frames` in all.
fn groups(frames: usize) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator {
    let others = frames.saturating_sub(FIRST_FRAMES).div_ceil(OTHER_FRAMES);
    (0..others + 1).map(move |group| {
        let start = if group == 0 { 0 } else { FIRST_FRAMES + (group - 1) * OTHER_FRAMES };
        let end = FIRST_FRAMES + group * OTHER_FRAMES;
        start..end.min(frames)
    })
}

/// Frames that are taken at a time: those of a chunk.
const FRAMES_AHEAD: usize = 64;

impl<'a> Large<'a> {
    /// Stores a value of `length` bytes, which `fill` writes part by part: a whole page each, and the rest.
    /// With a sharing domain, its pages share frames with equal ones. Gives the number of the first cell of
    /// its map; `None` when memory is out.
    pub fn store(
        self,
        lane: usize,
        domain: Option<u16>,
        length: usize,
        fill: &mut impl FnMut(usize, &mut [u8]),
    ) -> Option<u32> {
        let rest = length % PAGE_BYTES;
        let mut page = [0; PAGE_BYTES];
        if rest != 0 {
            fill(length - rest, &mut page[..rest]);
        }
        let rest_at = self.store_rest(lane, &page[..rest])?;
        let mut ahead = Ahead::new(self.arena, lane, length / PAGE_BYTES);
        let frame = |number: usize| match domain {
            None => {
                let frame = ahead.next()?;
                // SAFETY: the frame was just taken, so nobody else knows it.
                fill(number * PAGE_BYTES, unsafe { self.arena.content_mut(frame) });
                Some(frame)
            }
            Some(domain) => {
                fill(number * PAGE_BYTES, &mut page);
                self.arena.store_shared(lane, domain, &page).map(|(frame, _)| frame)
            }
        };
        let map = self.store_map(length, rest_at, frame, |frame| self.arena.release(frame));
        if map.is_none() {
            self.free_rest(rest, rest_at);
        }
        map
    }

    /// Takes the map and the place of the rest of a value of `length` bytes whose pages are still to come. Gives the
    /// number of the first cell for [`Self::complete`] or [`Self::cancel`]; `None` when memory is out.
    ///
    /// Cells need adjacent frames, which many values on their way at once may leave none of: a value whose map
    /// is taken first can't fail for it when all its pages have come.
    pub fn begin(self, lane: usize, length: usize) -> Option<u32> {
        let rest = length % PAGE_BYTES;
        let rest_at = self.store_rest(lane, &[0; PAGE_BYTES][..rest])?;
        let map = self.store_map(length, rest_at, |_| Some(NONE), |_| {});
        if map.is_none() {
            self.free_rest(rest, rest_at);
        }
        map
    }

    /// Makes a value of the map that [`Self::begin`] gave, of the frames that hold its pages, which belong to it from
    /// then on, and of `rest`.
    ///
    /// # Safety
    /// Nobody else knows the map yet.
    ///
    /// # Panics
    /// Unless there are as many frames, and `rest` is as long, as was said.
    pub unsafe fn complete(self, map: u32, frames: &[u32], rest: &[u8]) {
        let length = self.length(map);
        let (pages, rest_bytes) = (length / PAGE_BYTES, length % PAGE_BYTES);
        assert_eq!((frames.len(), rest.len()), (pages, rest_bytes));
        let rest_at = word(self.cells.content(self.arena, map), 1);
        match rest_bytes {
            0 => {}
            // SAFETY: as the caller promises.
            1..=CELL_BYTES_MAX => unsafe { self.cells.write(self.arena, rest_at, 0, rest) },
            // SAFETY: as the caller promises.
            _ => unsafe { self.arena.write(rest_at, rest) },
        }
        let mut cell = map;
        for (number, group) in groups(pages).enumerate() {
            let head = head_words(number);
            let next = word(self.cells.content(self.arena, cell), head - 1);
            for (at, &frame) in frames[group].iter().enumerate() {
                let (offset, bytes) = ((head + at) * WORD, frame.to_ne_bytes());
                // SAFETY: as the caller promises.
                unsafe { self.cells.write(self.arena, cell, offset, &bytes) };
            }
            cell = next;
        }
    }

    /// Gives back what [`Self::begin`] took.
    pub fn cancel(self, map: u32) {
        let length = self.length(map);
        let rest_at = word(self.cells.content(self.arena, map), 1);
        self.free_rest(length % PAGE_BYTES, rest_at);
        self.free_groups(length / PAGE_BYTES, 0, map, &|_| {});
    }

    /// Stores what is left of a value behind its pages; [`NONE`] for nothing.
    fn store_rest(self, lane: usize, rest: &[u8]) -> Option<u32> {
        match rest.len() {
            0 => Some(NONE),
            1..=CELL_BYTES_MAX => self.cells.store(self.arena, rest),
            _ => self.arena.store(lane, rest),
        }
    }

    /// Stores the map of a value, from the last cell to the first, so that each knows the number of its next.
    /// `frame` gives the frame of a page; when memory is out, `free` gets all that it gave.
    fn store_map(
        self,
        length: usize,
        rest_at: u32,
        mut frame: impl FnMut(usize) -> Option<u32>,
        free: impl Fn(u32),
    ) -> Option<u32> {
        let pages = length / PAGE_BYTES;
        let mut next = NONE;
        for (number, group) in groups(pages).enumerate().rev() {
            let first = [length as u32, rest_at, next];
            let head = if number == 0 { &first[..] } else { &first[2..] };
            let Some(cell) = self.store_group(group, head, &mut frame, &free) else {
                self.free_groups(pages, number + 1, next, &free);
                return None;
            };
            next = cell;
        }
        Some(next)
    }

    /// Stores one cell of the map.
    fn store_group(
        self,
        pages: Range<usize>,
        head: &[u32],
        frame: &mut impl FnMut(usize) -> Option<u32>,
        free: &impl Fn(u32),
    ) -> Option<u32> {
        let mut words = [0_u32; CELL_BYTES_MAX / WORD];
        words[..head.len()].copy_from_slice(head);
        let all = head.len() + pages.len();
        let mut filled = head.len();
        for page in pages {
            let Some(frame) = frame(page) else { break };
            words[filled] = frame;
            filled += 1;
        }
        if filled == all {
            let mut bytes = [0_u8; CELL_BYTES_MAX];
            for (out, word) in bytes.chunks_exact_mut(WORD).zip(words) {
                out.copy_from_slice(&word.to_ne_bytes());
            }
            if let Some(cell) = self.cells.store(self.arena, &bytes[..filled * WORD]) {
                return Some(cell);
            }
        }
        words[head.len()..filled].iter().for_each(|&frame| free(frame));
        None
    }

    /// Claims all memory of a value that another process stored: see
    /// [`Arena::take_over`](crate::Arena::take_over). Gives its length in bytes, or `None` when this cannot
    /// be a value.
    pub fn claim(self, claims: &mut Claims, cell: u32) -> Option<usize> {
        let length = claims.peek(self.arena, cell)? as usize;
        if !(PAGE_BYTES + 1..=VALUE_BYTES_MAX).contains(&length) {
            return None;
        }
        let claim_cell = |claims: &mut Claims, cell, bytes| {
            self.cells.claim_alone(self.arena, claims, cell, bytes).then_some(())
        };
        let shares = claims.shares;
        let claim_frame = |frame| {
            let references = self.arena.claim(frame, 0)?;
            (references == 1 || shares).then_some(())
        };
        let frames = length / PAGE_BYTES;
        let mut cell = cell;
        for (number, group) in groups(frames).enumerate() {
            let words = head_words(number) + group.len();
            claim_cell(claims, cell, words * WORD)?;
            let content = self.cells.content(self.arena, cell);
            (words - group.len()..words).try_for_each(|at| claim_frame(word(content, at)))?;
            if number == 0 {
                let rest_at = word(content, 1);
                match length % PAGE_BYTES {
                    0 => {}
                    rest @ 1..=CELL_BYTES_MAX => claim_cell(claims, rest_at, rest)?,
                    _ => claim_frame(rest_at)?,
                }
            }
            cell = word(content, head_words(number) - 1);
        }
        Some(length)
    }

    /// Bytes of the value whose map begins at `cell`.
    pub fn length(self, cell: u32) -> usize {
        word(self.cells.content(self.arena, cell), 0) as usize
    }

    /// Adds a reference to a value that has one. `None` when there are too many.
    pub fn pin(self, cell: u32) -> Option<LargePin<'a>> {
        let pinned = self.cells.meta(self.arena, cell).add_reference();
        pinned.then(|| self.adopt(cell))
    }

    /// Makes a reference that the caller holds one for reading.
    pub const fn adopt(self, cell: u32) -> LargePin<'a> {
        LargePin { large: self, cell }
    }

    /// Drops a reference that the caller holds; the last one frees the value.
    pub fn release(self, cell: u32) {
        if !self.cells.meta(self.arena, cell).drop_reference() {
            return;
        }
        let content = self.cells.content(self.arena, cell);
        let length = word(content, 0) as usize;
        self.free_rest(length % PAGE_BYTES, word(content, 1));
        self.free_groups(length / PAGE_BYTES, 0, cell, &|frame| self.arena.release(frame));
    }

    fn free_rest(self, length: usize, at: u32) {
        match length {
            0 => {}
            1..=CELL_BYTES_MAX => self.cells.release(self.arena, at, length),
            _ => self.arena.release(at),
        }
    }

    /// Frees the map from its cell `number` on, and has `free` free the frames in it.
    fn free_groups(self, frames: usize, number: usize, cell: u32, free: &impl Fn(u32)) {
        let mut cell = cell;
        for (number, group) in groups(frames).enumerate().skip(number) {
            let head = head_words(number);
            let content = self.cells.content(self.arena, cell);
            for at in head..head + group.len() {
                free(word(content, at));
            }
            let next = word(content, head - 1);
            self.cells.free(self.arena, cell);
            cell = next;
        }
    }

    /// The frames of the pages of the value whose map begins at `cell`.
    pub fn frames(self, cell: u32) -> Vec<u32> {
        let mut frames = Vec::with_capacity(self.length(cell) / PAGE_BYTES);
        self.each_frame(cell, &mut |frame| frames.push(frame));
        frames
    }

    /// Tells the frames of the pages of the value whose map begins at `cell`, in order.
    pub fn each_frame(self, cell: u32, tell: &mut impl FnMut(u32)) {
        let mut cell = cell;
        for (number, group) in groups(self.length(cell) / PAGE_BYTES).enumerate() {
            let content = self.cells.content(self.arena, cell);
            let head = head_words(number);
            (head..head + group.len()).for_each(|at| tell(word(content, at)));
            cell = word(content, head - 1);
        }
    }

    /// What is left of the value whose map begins at `cell` behind its pages.
    pub fn rest(self, cell: u32) -> &'a [u8] {
        let content = self.cells.content(self.arena, cell);
        let (length, at) = (word(content, 0) as usize, word(content, 1));
        match length % PAGE_BYTES {
            0 => &[],
            rest @ 1..=CELL_BYTES_MAX => &self.cells.content(self.arena, at)[..rest],
            rest => &self.arena.content(at)[..rest],
        }
    }

    /// Shows the value whose map begins at `cell` in parts with their offsets.
    fn show(self, cell: u32, take: &mut impl FnMut(usize, &[u8])) {
        let (pages, rest) = (self.length(cell) / PAGE_BYTES, self.rest(cell));
        if !rest.is_empty() {
            take(pages * PAGE_BYTES, rest);
        }
        let mut cell = cell;
        for (number, group) in groups(pages).enumerate() {
            let content = self.cells.content(self.arena, cell);
            let head = head_words(number);
            for (at, page) in group.enumerate() {
                take(page * PAGE_BYTES, self.arena.content(word(content, head + at)));
            }
            cell = word(content, head - 1);
        }
    }
}

/// Frames for the pages of a value, taken some at a time before they are filled.
struct Ahead<'a> {
    arena: &'a Arena,
    lane: usize,
    frames: [u32; FRAMES_AHEAD],
    /// Which of them are taken and not given out yet.
    taken: Range<usize>,
    /// Pages of the value for which no frame was taken yet.
    missing: usize,
}

impl<'a> Ahead<'a> {
    const fn new(arena: &'a Arena, lane: usize, pages: usize) -> Self {
        Self { arena, lane, frames: [NONE; FRAMES_AHEAD], taken: 0..0, missing: pages }
    }

    /// A frame for the next page, with one reference; `None` when memory is out.
    fn next(&mut self) -> Option<u32> {
        if self.taken.is_empty() {
            let places = &mut self.frames[..self.missing.min(FRAMES_AHEAD)];
            self.taken = 0..self.arena.store_several_later(self.lane, places);
            self.missing -= self.taken.len();
        }
        self.taken.next().map(|at| self.frames[at])
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.taken.clone().for_each(|at| self.arena.release(self.frames[at]));
    }
}

/// A long value that cannot be freed while this lives.
#[derive(Debug)]
pub struct LargePin<'a> {
    large: Large<'a>,
    cell: u32,
}

impl LargePin<'_> {
    /// Bytes of the value.
    pub fn length(&self) -> usize {
        self.large.length(self.cell)
    }

    /// What is left of it behind its pages.
    pub fn rest(&self) -> &[u8] {
        self.large.rest(self.cell)
    }

    /// Gives up the pin for the number of the first cell of the map: its reference is the caller's.
    pub const fn into_cell(self) -> u32 {
        let cell = self.cell;
        core::mem::forget(self);
        cell
    }

    /// Copies the value out.
    ///
    /// # Panics
    /// Unless `value` is exactly as long as it.
    pub fn read(&self, value: &mut [u8]) {
        assert_eq!(value.len(), self.length());
        self.show(&mut |offset, part| value[offset..][..part.len()].copy_from_slice(part));
    }

    /// Shows the value in parts with their offsets, in no particular order.
    pub fn show(&self, take: &mut impl FnMut(usize, &[u8])) {
        self.large.show(self.cell, take);
    }
}

impl Drop for LargePin<'_> {
    fn drop(&mut self) {
        self.large.release(self.cell);
    }
}
