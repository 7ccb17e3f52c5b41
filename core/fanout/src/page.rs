//! A page's bytes on their way.

use spillway_types::PAGE_BYTES;

/// Room for a sealed page, aligned as direct I/O wants it.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_BYTES]);

impl Page {
    /// Rooms that the kernel has given memory for already, since they are written.
    pub(crate) fn rooms(count: usize) -> Box<[Self]> {
        vec![Self([0xa5; PAGE_BYTES]); count].into()
    }
}

impl core::fmt::Debug for Page {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Page")
    }
}
