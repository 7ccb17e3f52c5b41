//! Working memory of slow paths, owned by the caller.

use spillway_tiers::lz4::{self, PACKED_BYTES, Table};
use spillway_tiers::{CELL_BYTES_MAX, PageBuf, WRITE_PAGES_MAX};
use spillway_types::PAGE_BYTES;

/// After this many incompressible pages in a row, the next ones most likely are too.
const FUTILE_MAX: u32 = 32;
/// Then only one page in this many is tried.
const PROBE_EVERY: u32 = 8;

/// Working memory for packing pages, 12 KiB. One for each task that calls
/// [`Store::put_packed`](crate::Store::put_packed).
#[derive(Debug)]
pub struct Packer {
    pub(crate) table: Table,
    pub(crate) packed: Box<[u8; PACKED_BYTES]>,
    /// Pages in a row that did not pack or were not tried.
    futile: u32,
}

/// Working memory for packing pages and for writing them to files, 140 KiB. One for each task that
/// calls [`Store::demote`](crate::Store::demote) or
/// [`Store::put_compressed`](crate::Store::put_compressed).
#[derive(Debug)]
pub struct Scratch {
    pub(crate) packer: Packer,
    /// Pages in transit to a file.
    pub(crate) pages: Box<[PageBuf]>,
}

impl Packer {
    /// Allocates the memory; nothing is allocated later.
    pub fn new() -> Self {
        Self { table: Table::default(), packed: Box::new([0; PACKED_BYTES]), futile: 0 }
    }

    /// Whether packing the next page is worth the microsecond that it takes.
    /// [`Store::demote`](crate::Store::demote) may try skipped pages later.
    pub(crate) fn expects_gain(&mut self) -> bool {
        let probe = self.futile < FUTILE_MAX || self.futile.is_multiple_of(PROBE_EVERY);
        self.futile = self.futile.wrapping_add(u32::from(!probe));
        probe
    }

    /// Packs a page into `packed`; the length, unless that saves too little.
    pub(crate) fn pack(&mut self, page: &[u8; PAGE_BYTES]) -> Option<usize> {
        let length = lz4::pack(page, &mut self.packed, &mut self.table);
        let gains = length <= CELL_BYTES_MAX;
        self.futile = if gains { 0 } else { self.futile.wrapping_add(1) };
        gains.then_some(length)
    }
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Allocates the memory; nothing is allocated later.
    pub fn new() -> Self {
        let pages = vec![PageBuf::ZERO; WRITE_PAGES_MAX].into_boxed_slice();
        Self { packer: Packer::new(), pages }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_given_up_while_it_is_futile_and_taken_up_again() {
        let mut packer = Packer::new();
        let incompressible: [u8; PAGE_BYTES] = core::array::from_fn(|at| {
            let mixed = (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
        });
        let mut tried = 0;
        for _ in 0..1000 {
            if packer.expects_gain() {
                tried += 1;
                assert_eq!(packer.pack(&incompressible), None);
            }
        }
        assert!((100..200).contains(&tried), "{tried} of 1000");
        while !packer.expects_gain() {}
        assert!(packer.pack(&[7; PAGE_BYTES]).is_some());
        assert!(packer.expects_gain() && packer.expects_gain(), "packs again at once");
    }
}
