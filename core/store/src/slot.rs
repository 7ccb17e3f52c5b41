//! The eight bytes of an index entry: a value's place and owner.

use spillway_tiers::NONE;
use spillway_tiers::blade::{BladePlace, INDEXES_MAX, OBJECTS_MAX};

/// Bits of a slot, from the lowest: place 35, owner 12, length 13, listed 1, kind 3.
const PLACE_BITS: u32 = 35;
const OWNER_SHIFT: u32 = PLACE_BITS;
const OWNER_BITS: u32 = 12;
const LENGTH_SHIFT: u32 = OWNER_SHIFT + OWNER_BITS;
const LENGTH_BITS: u32 = 13;
const LISTED_SHIFT: u32 = LENGTH_SHIFT + LENGTH_BITS;
const KIND_SHIFT: u32 = LISTED_SHIFT + 1;

/// Within the length of a raw value.
const INCOMPRESSIBLE_SHIFT: u32 = LENGTH_BITS - 1;

/// Clients that a store can have at the same time.
pub(crate) const CLIENTS_MAX: usize = 1 << OWNER_BITS;

/// The owner of values in reserved pools: no client, because the reservation is charged as a whole.
pub(crate) const PREPAID: u16 = 0;

/// Files that the file tier can have at the same time, bits.
const FILE_BITS: u32 = 8;
/// Objects on blades that a run can have at the same time, bits.
const OBJECT_BITS: u32 = OBJECTS_MAX.ilog2();

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueLocation {
    /// Nowhere: the entry is unused.
    Empty,
    /// A page, or a slightly shorter value, in a frame. An incompressible page could not be packed.
    Raw { frame: u32, length: u16, incompressible: bool },
    /// A value shorter than a page, in a cell.
    Small { cell: u32, length: u16 },
    /// A page packed with LZ4, in a cell; the packed length.
    Packed { cell: u32, length: u16 },
    /// A page filled with one word.
    Uniform { word: u32 },
    /// A longer value; the first cell of its map.
    Large { cell: u32 },
    /// A page in a file.
    Disk { file: u8, slot: u32 },
    /// A page on a blade; it is packed if it is shorter than a page.
    Blade(BladePlace),
}

/// An index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    pub(crate) const EMPTY: Self = Self(0);

    pub(crate) fn new(place: ValueLocation, owner: u16) -> Self {
        let (kind, length, at) = match place {
            ValueLocation::Empty => return Self::EMPTY,
            // Lengths of 1 to 4096 fit 12 bits less one, so that there is one for the mark.
            ValueLocation::Raw { frame, length, incompressible } => (
                1,
                (length - 1) | (u16::from(incompressible) << INCOMPRESSIBLE_SHIFT),
                u64::from(frame),
            ),
            ValueLocation::Small { cell, length } => (2, length, u64::from(cell)),
            ValueLocation::Packed { cell, length } => (3, length, u64::from(cell)),
            ValueLocation::Uniform { word } => (4, 0, u64::from(word)),
            ValueLocation::Large { cell } => (5, 0, u64::from(cell)),
            ValueLocation::Disk { file, slot } => {
                (6, 0, u64::from(slot) << FILE_BITS | u64::from(file))
            }
            ValueLocation::Blade(BladePlace { object, index, length }) => {
                (7, length, u64::from(index) << OBJECT_BITS | u64::from(object))
            }
        };
        debug_assert!(at < 1 << PLACE_BITS && u64::from(length) < 1 << LENGTH_BITS);
        Self(
            at | u64::from(owner) << OWNER_SHIFT
                | u64::from(length) << LENGTH_SHIFT
                | kind << KIND_SHIFT,
        )
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of the client that is charged.
    pub(crate) const fn owner(self) -> u16 {
        (self.0 >> OWNER_SHIFT & ((1 << OWNER_BITS) - 1)) as u16
    }

    pub(crate) const fn with_owner(self, owner: u16) -> Self {
        let mask = ((1 << OWNER_BITS) - 1) << OWNER_SHIFT;
        Self(self.0 & !mask | (owner as u64) << OWNER_SHIFT)
    }

    /// Whether the frame or cell is on a list on behalf of this entry. (A frame that several
    /// entries share is on the list of one of them at most.)
    pub(crate) const fn listed(self) -> bool {
        self.0 >> LISTED_SHIFT & 1 != 0
    }

    pub(crate) const fn with_listed(self, listed: bool) -> Self {
        Self(self.0 & !(1 << LISTED_SHIFT) | (listed as u64) << LISTED_SHIFT)
    }

    /// The same value in another frame. `None` if it is in none.
    pub(crate) fn with_frame(self, frame: u32) -> Option<Self> {
        let ValueLocation::Raw { length, incompressible, .. } = self.place() else { return None };
        let moved = Self::new(ValueLocation::Raw { frame, length, incompressible }, self.owner());
        Some(moved.with_listed(self.listed()))
    }

    pub(crate) fn place(self) -> ValueLocation {
        let at = self.0 & ((1 << PLACE_BITS) - 1);
        let low = at as u32;
        let length = (self.0 >> LENGTH_SHIFT & ((1 << LENGTH_BITS) - 1)) as u16;
        match self.0 >> KIND_SHIFT {
            0 => ValueLocation::Empty,
            1 => ValueLocation::Raw {
                frame: low,
                length: (length & ((1 << INCOMPRESSIBLE_SHIFT) - 1)) + 1,
                incompressible: length >> INCOMPRESSIBLE_SHIFT != 0,
            },
            2 => ValueLocation::Small { cell: low, length },
            3 => ValueLocation::Packed { cell: low, length },
            4 => ValueLocation::Uniform { word: low },
            5 => ValueLocation::Large { cell: low },
            6 => ValueLocation::Disk { file: at as u8, slot: (at >> FILE_BITS) as u32 },
            _ => ValueLocation::Blade(BladePlace {
                object: (at & ((1 << OBJECT_BITS) - 1)) as u16,
                index: (at >> OBJECT_BITS) as u32,
                length,
            }),
        }
    }
}

const _: () = assert!(KIND_SHIFT + 3 == 64 && NONE == u32::MAX);
const _: () = assert!(OBJECT_BITS + INDEXES_MAX.ilog2() == PLACE_BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_what_it_is_given() {
        let places = [
            ValueLocation::Raw { frame: u32::MAX - 1, length: 4096, incompressible: true },
            ValueLocation::Raw { frame: 0, length: 3072, incompressible: false },
            ValueLocation::Small { cell: 7, length: 4095 },
            ValueLocation::Packed { cell: u32::MAX - 1, length: 3072 },
            ValueLocation::Uniform { word: u32::MAX },
            ValueLocation::Large { cell: 1 },
            ValueLocation::Disk { file: 255, slot: (1 << 27) - 1 },
            ValueLocation::Blade(BladePlace { object: 4095, index: INDEXES_MAX - 1, length: 4096 }),
        ];
        for place in places {
            let slot = Slot::new(place, 4095).with_listed(true);
            assert_eq!(slot.place(), place);
            assert_eq!((slot.owner(), slot.listed()), (4095, true));
            let moved = slot.with_owner(1).with_listed(false);
            assert_eq!((moved.place(), moved.owner(), moved.listed()), (place, 1, false));
        }
    }
}
