//! Keeps the bare handler's resident pages within a bound: the minimum cost of eviction beside the faults.
//!
//! A thread moves out the oldest pages in batches: `UFFDIO_MOVE` into a window, a copy or the codec, then the window is
//! released. There is no table, no store, no choice of victims and no accounting. The copies are not read back: a page
//! returns with its initial content.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, ptr, slice, thread};

use lz4_flex::block;

use crate::pages::Region;
use crate::spec::{Content, PAGE};

/// Pages that leave together.
const BATCH: usize = 64;
/// Pause between two checks for too many pages.
const PAUSE: Duration = Duration::from_micros(100);

/// The resident pages in the order in which they came, and the window through which they leave.
pub struct Bound {
    local_pages: usize,
    /// A ring of page numbers plus one; 0 is a free slot.
    order: Box<[AtomicU32]>,
    came: AtomicUsize,
    left: AtomicUsize,
    window: Region,
}

impl Bound {
    pub fn new(local_pages: usize) -> io::Result<Self> {
        let places = (2 * local_pages).next_power_of_two();
        Ok(Self {
            local_pages,
            order: (0..places).map(|_| AtomicU32::new(0)).collect(),
            came: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            window: Region::map(BATCH)?,
        })
    }

    /// The window through which victims leave.
    pub fn window(&self) -> &Region {
        &self.window
    }

    /// Records a page that has come in. Waits while the ring is full.
    pub fn note(&self, page: usize) {
        let at = self.came.fetch_add(1, Ordering::Relaxed);
        while at >= self.left.load(Ordering::Acquire) + self.order.len() {
            thread::yield_now();
        }
        self.order[at % self.order.len()].store(page as u32 + 1, Ordering::Release);
    }

    /// Removes the oldest page from the ring.
    fn next(&self) -> Option<usize> {
        let left = self.left.load(Ordering::Relaxed);
        let page = self.order[left % self.order.len()].swap(0, Ordering::Acquire);
        if page == 0 {
            return None;
        }
        self.left.store(left + 1, Ordering::Release);
        Some(page as usize - 1)
    }

    /// Moves pages out in an endless loop. There are `pages` of them; `move_out` moves the page with a number to an
    /// address.
    pub fn evict(&self, pages: usize, content: Content, move_out: impl Fn(usize, usize)) {
        // Fill with ones, so that the memory is allocated now.
        let mut kept = vec![1; pages * PAGE];
        let mut packed = vec![0; block::get_maximum_output_size(PAGE)];
        loop {
            // Move whole batches, and sleep in between: the cores are for the faults.
            let came = self.came.load(Ordering::Relaxed);
            if came - self.left.load(Ordering::Relaxed) < self.local_pages {
                thread::sleep(PAUSE);
                continue;
            }
            let victims: Vec<usize> = std::iter::from_fn(|| self.next()).take(BATCH).collect();
            for (at, &page) in victims.iter().enumerate() {
                let target = self.window.address() + at * PAGE;
                move_out(page, target);
                // SAFETY: the page was just moved there, and only this thread uses the window.
                let victim = unsafe { slice::from_raw_parts(target as *const u8, PAGE) };
                match content {
                    Content::Random => kept[page * PAGE..][..PAGE].copy_from_slice(victim),
                    Content::Half => {
                        let length = block::compress_into(victim, &mut packed).unwrap_or(0);
                        kept[page * PAGE..][..length].copy_from_slice(&packed[..length]);
                    }
                }
            }
            // SAFETY: the window is this thread's own, and its content is not needed any more.
            unsafe {
                let bytes = self.window.pages() * PAGE;
                libc::madvise(
                    ptr::with_exposed_provenance_mut(self.window.address()),
                    bytes,
                    libc::MADV_DONTNEED,
                );
            }
        }
    }
}
