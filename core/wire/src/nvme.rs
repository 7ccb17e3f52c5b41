//! Commands and completions of NVMe, as in queues and capsules.

mod command;
mod completion;
mod dataset;
mod dwords;

pub use command::{COMMAND_BYTES, Command, DataPointer, SglDescriptor, SubmissionQueueEntry};
pub use completion::{COMPLETION_BYTES, Completion, CompletionQueueEntry, Status};
pub use dataset::{Range, RangeDefinition};
pub use dwords::{
    AbortDwords, BlockDwords, DatasetManagementDwords, FeaturesDwords, NumberOfQueues,
};

/// Namespace id that means all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Opcodes of the admin queue (Base 2.1, section 5, figure 141).
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Fabrics commands; see [`crate::fabrics`].
    pub const FABRICS: u8 = 0x7f;
}

/// Opcodes of I/O queues for block namespaces (NVM Command Set 1.0, section 3.2, figure 18).
pub mod block {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Feature identifiers of Set Features and Get Features (Base 2.1, sections 5.1.25.1 and 5.1.25.2).
pub mod feature {
    /// Number of I/O queues, both counts less one.
    pub const QUEUES: u8 = 0x07;
    /// The asynchronous events that the host wants.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep alive timeout, ms.
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// The direction of a command's data, from the two low bits of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the host to the controller.
    Out,
    /// From the controller to the host.
    In,
}

impl Direction {
    /// The direction of `opcode`. `None` for the reserved combination of both.
    pub const fn of(opcode: u8) -> Option<Self> {
        match opcode & 3 {
            0 => Some(Self::None),
            1 => Some(Self::Out),
            2 => Some(Self::In),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_say_the_way_of_data() {
        assert_eq!(Direction::of(block::WRITE), Some(Direction::Out));
        assert_eq!(Direction::of(block::READ), Some(Direction::In));
        assert_eq!(Direction::of(block::FLUSH), Some(Direction::None));
        assert_eq!(Direction::of(0xc3), None);
    }
}
