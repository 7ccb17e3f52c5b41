//! Ranges of a Dataset Management command.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

/// A range of a Dataset Management command (NVM Command Set 1.0, section 3.2.3, figure 41).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RangeDefinition {
    /// Context attributes (CATTR).
    pub context_attributes: U32,
    /// Length in logical blocks (LLB).
    pub length_in_logical_blocks: U32,
    /// Starting LBA (SLBA).
    pub starting_lba: U64,
}

const _: () = assert!(size_of::<RangeDefinition>() == 16);

/// A range of blocks: a [`RangeDefinition`] without its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First block.
    pub first_block: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl Range {
    /// Bytes of a range.
    pub const BYTES: usize = size_of::<RangeDefinition>();
    /// Most ranges of a command.
    pub const MAX: usize = 256;
    /// Attribute of the command: the ranges are no longer needed.
    pub const DEALLOCATE: u32 = 1 << 2;

    /// Decodes a range.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let range: &RangeDefinition = transmute_ref!(bytes);
        Self { first_block: range.starting_lba.get(), blocks: range.length_in_logical_blocks.get() }
    }

    /// Encodes the range.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        transmute!(RangeDefinition {
            context_attributes: U32::ZERO,
            length_in_logical_blocks: self.blocks.into(),
            starting_lba: self.first_block.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_laid_out_as_figure_41_says() {
        let range = Range { first_block: 0x0807_0605_0403_0201, blocks: 0x0c0b_0a09 };
        let bytes = [0, 0, 0, 0, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(range.encode(), bytes);
        assert_eq!(Range::decode(&bytes), range);
    }
}
