//! Working memory of the slow paths, owned by the caller.

use spillway_tiers::lz4::{PACKED_BYTES, Table};
use spillway_tiers::{PageBuf, WRITE_PAGES_MAX};

/// Working memory for packing pages and for writing them to files, 140 KiB. One for each task that
/// calls [`Store::demote`](crate::Store::demote) or
/// [`Store::put_compressed`](crate::Store::put_compressed).
#[derive(Debug)]
pub struct Scratch {
    pub(crate) table: Table,
    pub(crate) packed: Box<[u8; PACKED_BYTES]>,
    /// Pages on their way to a file.
    pub(crate) pages: Box<[PageBuf]>,
}

impl Scratch {
    /// Allocates the memory; nothing is allocated later.
    pub fn new() -> Self {
        Self {
            table: Table::default(),
            packed: Box::new([0; PACKED_BYTES]),
            pages: vec![PageBuf::ZERO; WRITE_PAGES_MAX].into_boxed_slice(),
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}
