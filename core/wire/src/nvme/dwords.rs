//! Command dwords 10 to 15: the parameters of a command besides namespace and data.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::Command;

/// The dwords of Read, Write, Compare and Write Zeroes (NVM Command Set 1.0, section 3.2, figures 47 to 51,
/// 62 to 66, 22 to 25 and 72 to 75).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockDwords {
    /// Starting LBA (SLBA).
    pub starting_lba: U64,
    /// Number of logical blocks (NLB), less one.
    pub number_of_logical_blocks: U16,
    /// Bits 31 to 16 of dword 12, among them force unit access (FUA) and limited retry (LR).
    pub options: U16,
    /// Dword 13.
    pub dword_13: U32,
    /// Dwords 14 and 15: tags of end-to-end data protection.
    pub tags: [U32; 2],
}

/// The dwords of Dataset Management (NVM Command Set 1.0, section 3.2.3, figures 39 and 40).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DatasetManagementDwords {
    /// Number of ranges (NR), less one.
    pub number_of_ranges: u8,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Dword 11: attribute deallocate (AD) in bit 2.
    pub attributes: U32,
    /// Dwords 12 to 15.
    pub not_used: [U32; 4],
}

/// The dwords of Set Features and Get Features (Base 2.1, sections 5.1.25 and 5.1.11).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FeaturesDwords {
    /// Feature identifier (FID).
    pub feature_identifier: u8,
    /// Bits 31 to 8 of dword 10: of Set Features, save (SV) in bit 31; of Get Features, select (SEL) in
    /// bits 10 to 8.
    pub options: [u8; 3],
    /// Dword 11: the feature's value.
    pub value: U32,
    /// Dwords 12 to 15.
    pub not_used: [U32; 4],
}

/// The value of the feature Number of Queues, and the result of setting it (Base 2.1, section
/// 5.1.25.2.1, figures 443 and 444).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NumberOfQueues {
    /// I/O submission queues (NSQR, NSQA), less one.
    pub submission_queues: U16,
    /// I/O completion queues (NCQR, NCQA), less one.
    pub completion_queues: U16,
}

const _: () = assert!(size_of::<NumberOfQueues>() == 4);

/// The dwords of Abort (Base 2.1, section 5.1.1, figure 143).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AbortDwords {
    /// Submission queue identifier (SQID).
    pub submission_queue_identifier: U16,
    /// Command identifier (CID).
    pub command_identifier: U16,
    /// Dwords 11 to 15.
    pub not_used: [U32; 5],
}

macro_rules! dwords {
    ($($dwords:ty),* $(,)?) => {
        $(impl $dwords {
            /// The dwords of a command.
            #[inline]
            pub fn of(command: &Command) -> Self {
                transmute!(command.dwords())
            }
        }

        impl From<$dwords> for [U32; 6] {
            #[inline]
            fn from(dwords: $dwords) -> Self {
                transmute!(dwords)
            }
        }

        const _: () = assert!(size_of::<$dwords>() == 24);)*
    };
}

dwords!(BlockDwords, DatasetManagementDwords, FeaturesDwords, AbortDwords);

impl Command {
    /// First block of a block command.
    #[inline]
    pub fn first_block(&self) -> u64 {
        BlockDwords::of(self).starting_lba.get()
    }

    /// Number of blocks of a block command. The field in the command is one less.
    #[inline]
    pub fn blocks(&self) -> u32 {
        u32::from(BlockDwords::of(self).number_of_logical_blocks.get()) + 1
    }
}

impl NumberOfQueues {
    /// Decodes the feature's value.
    pub fn decode(value: u32) -> Self {
        transmute!(U32::new(value))
    }

    /// Encodes the feature's value.
    pub fn encode(self) -> u32 {
        let value: U32 = transmute!(self);
        value.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let mut command = Command::new(0, 0, 0);
        let bytes: [u8; 24] = core::array::from_fn(|at| at as u8 + 1);
        command.set_dwords(transmute!(bytes));
        command
    }

    #[test]
    fn dwords_are_those_of_the_command() {
        let bytes: [u8; 24] = core::array::from_fn(|at| at as u8 + 1);
        assert_eq!(command().encode()[40..], bytes);
        assert_eq!(command().dwords().as_bytes(), bytes);
    }

    #[test]
    fn dwords_are_laid_out_as_the_figures_say() {
        let block = BlockDwords::of(&command());
        assert_eq!(block.starting_lba, 0x0807_0605_0403_0201);
        assert_eq!((block.number_of_logical_blocks.get(), block.options.get()), (0x0a09, 0x0c0b));
        let dataset = DatasetManagementDwords::of(&command());
        assert_eq!((dataset.number_of_ranges, dataset.attributes.get()), (1, 0x0807_0605));
        let features = FeaturesDwords::of(&command());
        assert_eq!((features.feature_identifier, features.value.get()), (1, 0x0807_0605));
        let abort = AbortDwords::of(&command());
        assert_eq!(abort.submission_queue_identifier, 0x0201);
        assert_eq!(abort.command_identifier, 0x0403);
        let queues = NumberOfQueues::decode(0x0403_0201);
        assert_eq!(
            (queues.submission_queues.get(), queues.completion_queues.get()),
            (0x0201, 0x0403)
        );
        assert_eq!(queues.encode(), 0x0403_0201);
    }
}
