//! Which pages a copy has missed: a bit for each page and copy, allocated with the device.
//!
//! A copy is behind for a page when its holder did not take the newest write of it. Such a page is not read from that
//! copy until it has been copied there. A thread sets a bit under the page's exclusive lock and the device's `losing`
//! lock, and clears it under a lock of the page.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::slabs::COPIES;

/// The map of a device.
#[derive(Debug)]
pub struct Behind {
    pages_per_slab: u64,
    bits: [Box<[AtomicU64]>; COPIES],
    /// Set bits of each slab.
    counts: Box<[[AtomicU32; COPIES]]>,
}

impl Behind {
    pub fn new(slabs: usize, pages_per_slab: u64) -> Self {
        let words = (slabs as u64 * pages_per_slab).div_ceil(64) as usize;
        Self {
            pages_per_slab,
            bits: core::array::from_fn(|_| (0..words).map(|_| AtomicU64::new(0)).collect()),
            counts: (0..slabs).map(|_| Default::default()).collect(),
        }
    }

    const fn slab_of(&self, page: u64) -> usize {
        (page / self.pages_per_slab) as usize
    }

    /// The copies that are behind for a page: a bit each.
    pub fn of(&self, page: u64) -> u8 {
        let bit = |copy: usize| {
            self.bits[copy][page as usize / 64].load(Ordering::Acquire) >> (page % 64) & 1
        };
        (0..COPIES).fold(0, |bits, copy| bits | (bit(copy) as u8) << copy)
    }

    /// Records that a copy has missed a write of a page.
    pub fn set(&self, page: u64, copy: usize) {
        let bit = 1 << (page % 64);
        if self.bits[copy][page as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.counts[self.slab_of(page)][copy].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Records that a copy has a page's newest contents.
    pub fn clear(&self, page: u64, copy: usize) {
        let bit = 1 << (page % 64);
        if self.bits[copy][page as usize / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            self.counts[self.slab_of(page)][copy].fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Forgets what a copy of a slab has missed: the copy is gone, or another one is in its place.
    pub fn clear_slab(&self, slab: usize, copy: usize) {
        for page in self.pages(slab, copy, 0) {
            self.clear(page, copy);
        }
    }

    /// Pages of a slab for which a copy is behind; none of a slab that there is not.
    pub fn count(&self, slab: usize, copy: usize) -> u32 {
        self.counts.get(slab).map_or(0, |its| its[copy].load(Ordering::Acquire))
    }

    /// Pages for which a copy is behind, all slabs together.
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    /// Those pages of a slab, from its page `from` on.
    pub fn pages(&self, slab: usize, copy: usize, from: u64) -> impl Iterator<Item = u64> {
        let first = slab as u64 * self.pages_per_slab;
        let all = first + from..first + self.pages_per_slab;
        let left = self.count(slab, copy) as usize;
        all.filter(move |page| self.of(*page) & 1 << copy != 0).take(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_once_and_by_slab_and_copy() {
        let behind = Behind::new(3, 256);
        for page in [0, 255, 256, 256, 700] {
            behind.set(page, 1);
        }
        behind.set(256, 0);
        assert_eq!((behind.of(256), behind.of(255), behind.of(1)), (3, 2, 0));
        assert_eq!((behind.count(0, 1), behind.count(1, 1), behind.count(1, 0)), (2, 1, 1));
        assert_eq!((behind.total(), behind.count(3, 0)), (5, 0));
        assert!(behind.pages(0, 1, 0).eq([0, 255]));
        assert!(behind.pages(0, 1, 1).eq([255]));
        behind.clear(255, 1);
        behind.clear(255, 1);
        behind.clear_slab(1, 1);
        assert_eq!((behind.of(256), behind.count(0, 1), behind.total()), (1, 1, 3));
    }
}
