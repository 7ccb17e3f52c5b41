//! Completion queue entries: completions and their status.

use core::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

/// Bytes of a completion.
pub const COMPLETION_BYTES: usize = size_of::<CompletionQueueEntry>();

/// A completion queue entry (Base 2.1, section 4.2.1, figures 96 to 98; of a fabrics response, section
/// 4.2.2, figure 99).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CompletionQueueEntry {
    /// Command specific: dwords 0 and 1 (DW0, DW1).
    pub command_specific: U64,
    /// SQ head pointer (SQHD).
    pub sq_head_pointer: U16,
    /// SQ identifier (SQID); reserved in a fabrics response.
    pub sq_identifier: U16,
    /// Command identifier (CID).
    pub command_identifier: U16,
    /// Status (STATUS) in bits 15 to 1, phase tag (P) in bit 0.
    pub status_and_phase_tag: U16,
}

const _: () = assert!(size_of::<CompletionQueueEntry>() == 16);

impl From<&Completion> for CompletionQueueEntry {
    #[inline]
    fn from(completion: &Completion) -> Self {
        Self {
            command_specific: completion.result.into(),
            sq_head_pointer: completion.queue_head.into(),
            sq_identifier: completion.queue.into(),
            command_identifier: completion.id.into(),
            status_and_phase_tag: (completion.status.0 << 1 | u16::from(completion.phase)).into(),
        }
    }
}

impl From<&CompletionQueueEntry> for Completion {
    #[inline]
    fn from(entry: &CompletionQueueEntry) -> Self {
        let status = entry.status_and_phase_tag.get();
        Self {
            result: entry.command_specific.get(),
            queue_head: entry.sq_head_pointer.get(),
            queue: entry.sq_identifier.get(),
            id: entry.command_identifier.get(),
            status: Status(status >> 1),
            phase: status & 1 != 0,
        }
    }
}

/// A completion: a [`CompletionQueueEntry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Command specific, words 0 and 1.
    pub result: u64,
    /// The controller's head in the submission queue.
    pub queue_head: u16,
    /// The number of the submission queue.
    pub queue: u16,
    /// The identifier of the command.
    pub id: u16,
    /// The status of the command.
    pub status: Status,
    /// The phase tag. It is inverted each time the queue wraps; only used in shared memory.
    pub phase: bool,
}

impl Completion {
    /// Decodes a completion.
    pub fn decode(bytes: &[u8; COMPLETION_BYTES]) -> Self {
        let entry: &CompletionQueueEntry = transmute_ref!(bytes);
        entry.into()
    }

    /// Encodes the completion.
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        transmute!(CompletionQueueEntry::from(self))
    }
}

/// The status of a command (Base 2.1, section 4.2.3, figure 100): status code in bits 7 to 0, its type in
/// bits 10 to 8, Do Not Retry in bit 14.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    const DO_NOT_RETRY: u16 = 1 << 14;

    /// The same status with Do Not Retry set: another try would fail in the same way.
    #[must_use]
    pub const fn finally(self) -> Self {
        Self(self.0 | Self::DO_NOT_RETRY)
    }

    /// The status without other bits than code and type, for comparisons with the constants.
    pub const fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.code().0 == 0
    }

    /// Whether Do Not Retry is set.
    pub const fn is_final(self) -> bool {
        self.0 & Self::DO_NOT_RETRY != 0
    }
}

/// Defines the statuses and their names in one table.
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

// Base 2.1, section 4.2.3, figures 102 to 107; Key Value Command Set 1.0, section 3.1, figure 4.
statuses! {
    /// The command succeeded.
    SUCCESS = 0x000, "Success";
    /// The opcode is unknown.
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    /// A field has a value that is not allowed.
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    /// A command with this id is outstanding.
    ID_CONFLICT = 0x003, "Command ID Conflict";
    /// A failure that the host did not cause.
    INTERNAL = 0x006, "Internal Error";
    /// An Abort ended the command.
    ABORTED = 0x007, "Command Abort Requested";
    /// The namespace does not exist, or not for this client.
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    /// The command came out of order.
    SEQUENCE = 0x00c, "Command Sequence Error";
    /// The descriptor has another length than the command.
    DATA_LENGTH = 0x00f, "Data SGL Length Invalid";
    /// The type of the descriptor is not supported.
    DESCRIPTOR_TYPE = 0x011, "SGL Descriptor Type Invalid";
    /// The offset is outside the capsule.
    DESCRIPTOR_OFFSET = 0x016, "SGL Offset Invalid";
    /// The Keep Alive came too late.
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    /// The keep alive timeout is not supported.
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    /// The transport failed. Another try may succeed.
    TRANSPORT = 0x022, "Transient Transport Error";
    /// The blocks reach beyond the end.
    OUT_OF_RANGE = 0x080, "LBA Out of Range";
    /// A put was refused.
    CAPACITY = 0x081, "Capacity Exceeded";
    /// The namespace can't be used now.
    NOT_READY = 0x082, "Namespace Not Ready";
    /// The value is empty or too long.
    VALUE_SIZE = 0x085, "Invalid Value Size";
    /// The key has a wrong length.
    KEY_SIZE = 0x086, "Invalid Key Size";
    /// The key does not exist.
    KEY_NOT_FOUND = 0x087, "KV Key Does Not Exist";
    /// The value can't be read any more.
    UNRECOVERED = 0x088, "Unrecovered Error";
    /// The key exists, and the command must not overwrite its value.
    KEY_EXISTS = 0x089, "Key Exists";
    /// There are too many outstanding event requests.
    ASYNC_EVENT_LIMIT = 0x105, "Asynchronous Event Request Limit Exceeded";
    /// The log page does not exist.
    INVALID_LOG = 0x109, "Invalid Log Page";
    /// The feature can't be changed.
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    /// Connect: the format is unknown.
    CONNECT_FORMAT = 0x180, "Connect Incompatible Format";
    /// Connect: the controller is in use.
    CONNECT_BUSY = 0x181, "Connect Controller Busy";
    /// Connect: a field of the command or data is invalid. The result gives its offset.
    CONNECT_PARAMETERS = 0x182, "Connect Invalid Parameters";
    /// Connect: this host is not allowed.
    CONNECT_HOST = 0x184, "Connect Invalid Host";
    /// The queue has not authenticated.
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    /// A block can't be read any more.
    UNRECOVERED_READ = 0x281, "Unrecovered Read Error";
    /// The client may not join this shared pool, or the pool does not exist.
    ACCESS_DENIED = 0x286, "Access Denied";
    /// Compare found other bytes.
    COMPARE_FAILURE = 0x285, "Compare Failure";
    /// Path: the controller has ended or is ending.
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

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Every field of a completion. Each has other bytes.
    #[test]
    fn a_completion_is_laid_out_as_figure_96_says() {
        let completion = Completion {
            result: 0x0807_0605_0403_0201,
            queue_head: 0x0a09,
            queue: 0x0c0b,
            id: 0x0e0d,
            status: Status(0x1020 >> 1),
            phase: false,
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x20, 0x10];
        assert_eq!(completion.encode(), bytes);
        assert_eq!(Completion::decode(&bytes), completion);
    }
}
