//! The bytes of a page in transit.

use spillway_types::PAGE_BYTES;

/// A buffer for a sealed page, aligned for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_BYTES]);

impl Page {
    /// Buffers that already have their memory, because they are written here.
    pub(crate) fn rooms(count: usize) -> Box<[Self]> {
        vec![Self([0xa5; PAGE_BYTES]); count].into()
    }
}

impl core::fmt::Debug for Page {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Page")
    }
}
