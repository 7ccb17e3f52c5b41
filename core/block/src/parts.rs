//! Ranges of bytes as pages and parts of pages.

use spillway_types::PAGE_BYTES;

/// The part of one page that a request covers.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Number of the page.
    pub page: u64,
    /// Its first byte in the page.
    pub start: usize,
    /// The end of the part in the page, exclusive.
    pub end: usize,
}

impl Part {
    /// Whether it is all of the page.
    pub const fn is_whole(self) -> bool {
        self.end - self.start == PAGE_BYTES
    }
}

/// The parts of pages in a range of bytes, in order.
pub fn parts(offset: u64, bytes: u64) -> impl Iterator<Item = Part> {
    let end = offset + bytes;
    let mut at = offset;
    core::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let page = at / PAGE_BYTES as u64;
        let start = at % PAGE_BYTES as u64;
        let length = (PAGE_BYTES as u64 - start).min(end - at);
        at += length;
        Some(Part { page, start: start as usize, end: (start + length) as usize })
    })
}

/// The pages that lie completely in a range of bytes.
pub fn whole_pages(start: u64, end: u64) -> core::ops::Range<u64> {
    let first = start.div_ceil(PAGE_BYTES as u64);
    first..(end / PAGE_BYTES as u64).max(first)
}
