//! The tiers in which bytes lie: memory, compressed memory, file, blade.
//!
//! The crate does not know clients' keys. It hands out frames and cells of a mapped region, packs pages with LZ4,
//! keeps pages in files and sends them to blades. All of it runs on bare tasks inside foreign programs: no
//! thread-local storage, no libc calls, no allocation after opening. The one exception is [`KeptFile`], the file
//! tier of a daemon, which has threads.

mod apart;
mod arena;
pub mod blade;
mod budget;
mod cells;
mod file;
mod large;
pub mod lz4;
mod meta;
mod region;
pub mod sync;
mod uniform;

pub use apart::{Apart, expect_write};
pub use arena::{Arena, CHUNK_BYTES, Emptying, NONE, Pinned, RESERVES_MAX};
pub use budget::{Budget, Use};
pub use cells::{CELL_BYTES_MAX, CellPin, Cells, Claims, SHARED_BYTES_MIN, least_cell_bytes};
pub use file::{
    Disk, DiskCounters, DiskError, DiskRead, DiskTrouble, FILES_MAX, Files, KeptFile, KeptSettings,
    Moving, SLOTS_MAX, SlotRead, Turn, Turns, WRITE_PAGES_MAX, Written, try_directory,
};
pub use large::{Large, LargePin};
pub use meta::Meta;
pub use region::{Backing, GrowArray, Region, Table, Zeroed, zeroed_slice};
pub use uniform::{fill_word, uniform_word};

use spillway_types::PAGE_BYTES;

/// A page-aligned buffer of one page, as direct I/O wants it.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct PageBuf(pub [u8; PAGE_BYTES]);

impl PageBuf {
    /// A buffer of zeros.
    pub const ZERO: Self = Self([0; PAGE_BYTES]);
}

impl Default for PageBuf {
    fn default() -> Self {
        Self::ZERO
    }
}
