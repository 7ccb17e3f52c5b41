//! The kinds of lists: a client has several in each shard.

use spillway_types::PAGE_BYTES;

use crate::slot::ValueLocation;

/// Which of a client's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Persistent pages in frames.
    Frames,
    /// Persistent pages in frames that could not be packed.
    IncompressibleFrames,
    /// Persistent packed pages.
    Packed,
    /// Ephemeral values in frames.
    EphemeralFrames,
    /// Ephemeral values in cells.
    EphemeralCells,
}

/// How many lists a client has in a shard.
pub(crate) const LISTS: usize = 5;

impl List {
    /// The list for a value at `place`. Only values that can be evicted or moved to a lower tier
    /// are on one: not uniform pages, pages in files, or persistent values other than pages.
    pub(crate) const fn of(place: ValueLocation, ephemeral: bool) -> Option<(Self, u32)> {
        const PAGE: u16 = PAGE_BYTES as u16;
        match (place, ephemeral) {
            (ValueLocation::Raw { frame, length: PAGE, incompressible: false }, false) => {
                Some((Self::Frames, frame))
            }
            (ValueLocation::Raw { frame, length: PAGE, incompressible: true }, false) => {
                Some((Self::IncompressibleFrames, frame))
            }
            (ValueLocation::Packed { cell, .. }, false) => Some((Self::Packed, cell)),
            (ValueLocation::Raw { frame, .. }, true) => Some((Self::EphemeralFrames, frame)),
            (
                ValueLocation::Small { cell, .. }
                | ValueLocation::Packed { cell, .. }
                | ValueLocation::Large { cell },
                true,
            ) => Some((Self::EphemeralCells, cell)),
            _ => None,
        }
    }

    pub(crate) const fn is_frames(self) -> bool {
        matches!(self, Self::Frames | Self::IncompressibleFrames | Self::EphemeralFrames)
    }
}
