//! The mapping, and the content of its pages.

use std::{io, ptr, slice};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::spec::{Content, PAGE};

/// A private anonymous mapping without huge pages, made through the C library like any program's.
pub struct Region {
    start: *mut u8,
    pages: usize,
}

// SAFETY: the mapping lives until the process ends, and threads access it only by volatile accesses.
unsafe impl Sync for Region {}
// SAFETY: as above; no thread owns it.
unsafe impl Send for Region {}

impl Region {
    /// Maps `pages` pages, none of which is resident yet.
    pub fn map(pages: usize) -> io::Result<Self> {
        let bytes = pages * PAGE;
        // SAFETY: the kernel places the new private mapping, which replaces nothing.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped; the advice changes no content.
        if unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), pages })
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The start address.
    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// The first word of a page.
    #[inline(always)]
    pub fn word(&self, page: usize) -> *mut u64 {
        debug_assert!(page < self.pages);
        self.start.wrapping_add(page * PAGE).cast()
    }

    /// A whole page, to fill before the threads start.
    #[expect(clippy::mut_from_ref, reason = "one thread fills, and none reads meanwhile")]
    pub fn page(&self, page: usize) -> &mut [u8] {
        // SAFETY: the page lies within the mapping; the caller is the only thread.
        unsafe { slice::from_raw_parts_mut(self.word(page).cast(), PAGE) }
    }
}

/// The first word of page `page`, by which a reader recognises it.
#[inline(always)]
pub fn signature(page: usize) -> u64 {
    (page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1)
}

/// Fills a page: its signature, then bytes that LZ4 compresses as `content` says.
pub fn fill(page: &mut [u8], number: usize, content: Content) {
    let mut random = SmallRng::seed_from_u64(number as u64);
    random.fill_bytes(page);
    if content == Content::Half {
        // Short runs of new bytes between short repeats, as in text.
        for line in page.chunks_exact_mut(64) {
            line[28..].fill(b' ');
        }
    }
    page[..8].copy_from_slice(&signature(number).to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_compress_as_they_say() {
        let packed_bytes = |content| {
            let mut page = vec![0; PAGE];
            fill(&mut page, 7, content);
            lz4_flex::block::compress_into(&page, &mut [0; 2 * PAGE]).expect("room for any page")
        };
        let half = packed_bytes(Content::Half);
        assert!((1900..2200).contains(&half), "{half} bytes");
        assert!(packed_bytes(Content::Random) >= PAGE);
    }
}
