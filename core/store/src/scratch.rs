//! Working memory of the slow paths, owned by the caller.

use spillway_tiers::PageBuf;
use spillway_tiers::lz4::Table;

/// Working memory for packing pages and for writing them to files. One for each task that calls
/// [`Store::demote`](crate::Store::demote) or [`Store::put_compressed`](crate::Store::put_compressed).
#[derive(Debug)]
pub struct Scratch {
    pub(crate) table: Table,
    pub(crate) packed: Box<PageBuf>,
}

impl Scratch {
    /// Allocates the memory; nothing is allocated later.
    pub fn new() -> Self {
        Self { table: Table::default(), packed: Box::default() }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}
