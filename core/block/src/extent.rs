//! Which bytes of a device are stored.

use crate::parts::parts;

/// Most pages that one [`Device::status`](crate::Device::status) looks at.
const STATUS_PAGES_MAX: usize = 1 << 16;

/// A range of a device that is stored completely or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Its length.
    pub bytes: u64,
    /// Whether it takes memory. A range that takes none reads as zeros.
    pub stored: bool,
}

/// An implementation of [`Device::status`](crate::Device::status) for a device that can tell for each page whether it
/// is stored. Fills `extents` from the front and returns how many it filled. It stops when `extents` is full, or after
/// 65,536 pages.
pub fn fill_extents(
    offset: u64,
    bytes: u64,
    extents: &mut [Extent],
    is_stored: impl Fn(u64) -> bool,
) -> usize {
    let mut filled = 0;
    for part in parts(offset, bytes).take(STATUS_PAGES_MAX) {
        let stored = is_stored(part.page);
        let bytes = (part.end - part.start) as u64;
        if filled != 0 && extents[filled - 1].stored == stored {
            extents[filled - 1].bytes += bytes;
        } else if filled < extents.len() {
            extents[filled] = Extent { bytes, stored };
            filled += 1;
        } else {
            break;
        }
    }
    filled
}
