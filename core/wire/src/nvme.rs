//! Commands and completions of NVMe, as they stand in queues and capsules.

use core::fmt;

use crate::bytes::{put, u16_at, u32_at, u64_at};

/// Bytes of a command.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a completion.
pub const COMPLETION_BYTES: usize = 16;
/// Namespace id that means all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Opcodes of the admin queue (Base 2.0, figure 89).
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

/// Opcodes of I/O queues for block namespaces (NVM Command Set 1.0).
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

/// Feature identifiers of Set Features and Get Features.
pub mod feature {
    /// Number of I/O queues, both counts less one.
    pub const QUEUES: u8 = 0x07;
    /// Which asynchronous events are wanted.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep alive timeout, ms.
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// The way of the data of a command, from the two low bits of its opcode.
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
    /// What `opcode` says. `None` for the reserved combination of both.
    pub const fn of(opcode: u8) -> Option<Self> {
        match opcode & 3 {
            0 => Some(Self::None),
            1 => Some(Self::Out),
            2 => Some(Self::In),
            _ => None,
        }
    }
}

/// Where the data of a command lies: an SGL descriptor (Base 2.0, figure 98).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataPointer {
    /// An address or an offset, as [`Self::kind`] says.
    pub address: u64,
    /// Bytes of the data.
    pub bytes: u32,
    /// Descriptor type in bits 7 to 4, its subtype in bits 3 to 0.
    pub kind: u8,
}

impl DataPointer {
    /// Data block with an address.
    pub const BLOCK: u8 = 0x00;
    /// Data block with an offset: in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// The transport moves the data.
    pub const TRANSPORT: u8 = 0x5a;

    /// `bytes` that the transport moves.
    pub const fn transport(bytes: u32) -> Self {
        Self { address: 0, bytes, kind: Self::TRANSPORT }
    }

    /// `bytes` at the start of the capsule's data.
    pub const fn in_capsule(bytes: u32) -> Self {
        Self { address: 0, bytes, kind: Self::IN_CAPSULE }
    }
}

/// A command: a submission queue entry (Base 2.0, figure 86).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub opcode: u8,
    /// Bits 7 and 6: how the data pointer is to be read; bits 1 and 0: fused operation.
    pub flags: u8,
    /// Names the command until its completion.
    pub id: u16,
    /// Which namespace.
    pub namespace: u32,
    /// Command specific.
    pub cdw2: u32,
    /// Command specific.
    pub cdw3: u32,
    /// Metadata pointer.
    pub metadata: u64,
    /// Where the data lies.
    pub data: DataPointer,
    /// Command specific.
    pub cdw10: u32,
    /// Command specific.
    pub cdw11: u32,
    /// Command specific.
    pub cdw12: u32,
    /// Command specific.
    pub cdw13: u32,
    /// Command specific.
    pub cdw14: u32,
    /// Command specific.
    pub cdw15: u32,
}

impl Command {
    /// [`Self::flags`] that say: the data pointer is an SGL descriptor. NVMe over fabrics has no others.
    pub const SGL: u8 = 0x40;

    /// A command of `opcode` with the flags of fabrics and nothing else.
    pub const fn new(opcode: u8, id: u16, namespace: u32) -> Self {
        Self {
            opcode,
            flags: Self::SGL,
            id,
            namespace,
            cdw2: 0,
            cdw3: 0,
            metadata: 0,
            data: DataPointer::transport(0),
            cdw10: 0,
            cdw11: 0,
            cdw12: 0,
            cdw13: 0,
            cdw14: 0,
            cdw15: 0,
        }
    }

    /// Reads a command.
    pub fn decode(bytes: &[u8; COMMAND_BYTES]) -> Self {
        let word = |number: usize| u32_at(bytes, 4 * number);
        Self {
            opcode: bytes[0],
            flags: bytes[1],
            id: u16_at(bytes, 2),
            namespace: word(1),
            cdw2: word(2),
            cdw3: word(3),
            metadata: u64_at(bytes, 16),
            data: DataPointer { address: u64_at(bytes, 24), bytes: word(8), kind: bytes[39] },
            cdw10: word(10),
            cdw11: word(11),
            cdw12: word(12),
            cdw13: word(13),
            cdw14: word(14),
            cdw15: word(15),
        }
    }

    /// The command's bytes.
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        put(&mut bytes, 2, &self.id.to_le_bytes());
        put(&mut bytes, 16, &self.metadata.to_le_bytes());
        put(&mut bytes, 24, &self.data.address.to_le_bytes());
        bytes[39] = self.data.kind;
        let words = [
            (1, self.namespace),
            (2, self.cdw2),
            (3, self.cdw3),
            (8, self.data.bytes),
            (10, self.cdw10),
            (11, self.cdw11),
            (12, self.cdw12),
            (13, self.cdw13),
            (14, self.cdw14),
            (15, self.cdw15),
        ];
        for (number, word) in words {
            put(&mut bytes, 4 * number, &word.to_le_bytes());
        }
        bytes
    }

    /// First block of a block command.
    pub const fn first_block(&self) -> u64 {
        self.cdw10 as u64 | (self.cdw11 as u64) << 32
    }

    /// Number of blocks of a block command; it stands less one in the command.
    pub const fn blocks(&self) -> u32 {
        (self.cdw12 & 0xffff) + 1
    }
}

/// A completion: a completion queue entry (Base 2.0, figure 89).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Command specific, words 0 and 1.
    pub result: u64,
    /// Where the controller's head in the submission queue is.
    pub queue_head: u16,
    /// Which submission queue.
    pub queue: u16,
    /// The command.
    pub id: u16,
    /// How it went.
    pub status: Status,
    /// Turns over each time the queue wraps; shared memory only.
    pub phase: bool,
}

impl Completion {
    /// Reads a completion.
    pub fn decode(bytes: &[u8; COMPLETION_BYTES]) -> Self {
        let status = u16_at(bytes, 14);
        Self {
            result: u64_at(bytes, 0),
            queue_head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            id: u16_at(bytes, 12),
            status: Status(status >> 1),
            phase: status & 1 != 0,
        }
    }

    /// The completion's bytes.
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.queue_head.to_le_bytes());
        put(&mut bytes, 10, &self.queue.to_le_bytes());
        put(&mut bytes, 12, &self.id.to_le_bytes());
        put(&mut bytes, 14, &(self.status.0 << 1 | u16::from(self.phase)).to_le_bytes());
        bytes
    }
}

/// How a command went: status code in bits 7 to 0, its type in bits 10 to 8, Do Not Retry in bit 14.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    const DO_NOT_RETRY: u16 = 1 << 14;

    /// The same with Do Not Retry set: it would go the same way again.
    #[must_use]
    pub const fn finally(self) -> Self {
        Self(self.0 | Self::DO_NOT_RETRY)
    }

    /// Code and type alone, to compare with the constants.
    pub const fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// Whether the command did what it says.
    pub const fn is_success(self) -> bool {
        self.code().0 == 0
    }

    /// Whether Do Not Retry is set.
    pub const fn is_final(self) -> bool {
        self.0 & Self::DO_NOT_RETRY != 0
    }
}

/// The statuses and what they are called, in one table.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// The specification's name.
            const fn text(self) -> &'static str {
                match self.0 & 0x7ff {
                    $($code => $text,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

// Base 2.0, figures 92 to 97; Key Value Command Set 1.0, section 1.4; fabrics, Base 2.0 section 3.3.
statuses! {
    /// It went well.
    SUCCESS = 0x000, "Success";
    /// No such opcode.
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    /// A field has a value that is not allowed.
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    /// A command of this id is under way.
    ID_CONFLICT = 0x003, "Command ID Conflict";
    /// Something failed that is not the host's fault.
    INTERNAL = 0x006, "Internal Error";
    /// Abort asked for it.
    ABORTED = 0x007, "Command Abort Requested";
    /// There is no such namespace, for this client.
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    /// Commands do not come in this order.
    SEQUENCE = 0x00c, "Command Sequence Error";
    /// The descriptor says another length than the command.
    DATA_LENGTH = 0x00f, "Data SGL Length Invalid";
    /// A descriptor of a kind that is not served.
    DESCRIPTOR_TYPE = 0x011, "SGL Descriptor Type Invalid";
    /// An offset outside the capsule.
    DESCRIPTOR_OFFSET = 0x016, "SGL Offset Invalid";
    /// Keep alive came too late.
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    /// Keep alive timeout of a length that is not served.
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    /// The transport failed; trying again may help.
    TRANSPORT = 0x022, "Transient Transport Error";
    /// Blocks beyond the end.
    OUT_OF_RANGE = 0x080, "LBA Out of Range";
    /// A refused put.
    CAPACITY = 0x081, "Capacity Exceeded";
    /// The namespace can't be used now.
    NOT_READY = 0x082, "Namespace Not Ready";
    /// Empty or too long a value.
    VALUE_SIZE = 0x085, "Invalid Value Size";
    /// Keys have another length.
    KEY_SIZE = 0x086, "Invalid Key Size";
    /// A miss.
    KEY_NOT_FOUND = 0x087, "KV Key Does Not Exist";
    /// The value can't be read any more.
    UNRECOVERED = 0x088, "Unrecovered Error";
    /// A value is there, and the command said not to overwrite it.
    KEY_EXISTS = 0x089, "Key Exists";
    /// More events asked for than are held.
    ASYNC_EVENT_LIMIT = 0x105, "Asynchronous Event Request Limit Exceeded";
    /// There is no such log page.
    INVALID_LOG = 0x109, "Invalid Log Page";
    /// The feature can't be changed.
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    /// Connect: a format that is not known.
    CONNECT_FORMAT = 0x180, "Connect Incompatible Format";
    /// Connect: the controller is in use.
    CONNECT_BUSY = 0x181, "Connect Controller Busy";
    /// Connect: a field of command or data is wrong; the result says which.
    CONNECT_PARAMETERS = 0x182, "Connect Invalid Parameters";
    /// Connect: this host may not.
    CONNECT_HOST = 0x184, "Connect Invalid Host";
    /// The queue has not authenticated.
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    /// A block can't be read any more.
    UNRECOVERED_READ = 0x281, "Unrecovered Read Error";
    /// The client may not join this shared pool, or there is none.
    ACCESS_DENIED = 0x286, "Access Denied";
    /// Compare found other bytes.
    COMPARE_FAILURE = 0x285, "Compare Failure";
    /// Path: the controller has gone or is going.
    PATH = 0x300, "Internal Path Error";
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x}, {})", self.0, self.text())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#05x})", self.text(), self.code().0)
    }
}

/// A range of a Dataset Management command (NVM Command Set 1.0, figure 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First block.
    pub first_block: u64,
    /// Blocks.
    pub blocks: u32,
}

impl Range {
    /// Bytes of a range.
    pub const BYTES: usize = 16;
    /// Ranges that a command has at most.
    pub const MAX: usize = 256;
    /// In word 11: the ranges are no longer needed.
    pub const DEALLOCATE: u32 = 1 << 2;

    /// Reads a range.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        Self { first_block: u64_at(bytes, 8), blocks: u32_at(bytes, 4) }
    }

    /// The range's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 4, &self.blocks.to_le_bytes());
        put(&mut bytes, 8, &self.first_block.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read of 8 blocks from block 0x123456789 of namespace 1, as Linux's host sends it.
    const READ: [u8; 64] = {
        let mut bytes = [0; 64];
        bytes[0] = 0x02;
        bytes[1] = 0x40;
        bytes[2] = 0x34;
        bytes[3] = 0x12;
        bytes[4] = 1;
        bytes[33] = 0x10; // 4096 bytes
        bytes[39] = 0x5a;
        bytes[40] = 0x89;
        bytes[41] = 0x67;
        bytes[42] = 0x45;
        bytes[43] = 0x23;
        bytes[44] = 0x01;
        bytes[48] = 7;
        bytes
    };

    #[test]
    fn reads_a_command_of_the_kernel() {
        let command = Command::decode(&READ);
        assert_eq!(
            (command.opcode, command.flags, command.id),
            (block::READ, Command::SGL, 0x1234)
        );
        assert_eq!(command.data, DataPointer::transport(4096));
        assert_eq!((command.first_block(), command.blocks()), (0x1_2345_6789, 8));
        assert_eq!(command.encode(), READ);
    }

    #[test]
    fn status_stands_above_the_phase() {
        let completion = Completion {
            result: 7,
            queue_head: 3,
            queue: 1,
            id: 9,
            status: Status::CAPACITY.finally(),
            phase: true,
        };
        let bytes = completion.encode();
        assert_eq!(bytes[14..], [0x03, 0x81]);
        assert_eq!(Completion::decode(&bytes), completion);
        assert_eq!(completion.status.code(), Status::CAPACITY);
        assert!(completion.status.is_final() && !completion.status.is_success());
        assert_eq!(completion.status.to_string(), "Capacity Exceeded (0x081)");
    }

    #[test]
    fn opcodes_say_the_way_of_data() {
        assert_eq!(Direction::of(block::WRITE), Some(Direction::Out));
        assert_eq!(Direction::of(block::READ), Some(Direction::In));
        assert_eq!(Direction::of(block::FLUSH), Some(Direction::None));
        assert_eq!(Direction::of(0xc3), None);
    }
}
