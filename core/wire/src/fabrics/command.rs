//! The submission queue entries of fabrics commands.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::{Command, SglDescriptor, SubmissionQueueEntry, admin};

/// The first fields of all fabrics commands (Base 2.1, section 4.1.2, figures 94 and 95).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FabricsCommand {
    /// Opcode (OPC): 7Fh.
    pub opcode: u8,
    /// Bits 15 to 8 of command dword 0: PRP or SGL for data transfer (PSDT) in bits 7 and 6.
    pub flags: u8,
    /// Command identifier (CID).
    pub command_identifier: U16,
    /// Fabrics command type (FCTYPE, figure 540).
    pub fabrics_command_type: u8,
    /// Reserved.
    pub reserved: [u8; 19],
    /// SGL descriptor 1 (SGL1).
    pub sgl_descriptor_1: SglDescriptor,
}

const _: () = assert!(size_of::<FabricsCommand>() == 40);

impl FabricsCommand {
    /// A command of a type. The descriptor `data` locates its data.
    pub(super) fn new(fabrics_command_type: u8, id: u16, data: impl Into<SglDescriptor>) -> Self {
        Self {
            opcode: admin::FABRICS,
            flags: Command::SGL,
            command_identifier: id.into(),
            fabrics_command_type,
            reserved: [0; _],
            sgl_descriptor_1: data.into(),
        }
    }
}

/// Connect (Base 2.1, section 6.3, figure 545).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectCommand {
    /// The fields of all fabrics commands.
    pub common: FabricsCommand,
    /// Record format (RECFMT).
    pub record_format: U16,
    /// Queue ID (QID).
    pub queue_id: U16,
    /// Submission queue size (SQSIZE), entries less one.
    pub submission_queue_size: U16,
    /// Connect attributes (CATTR).
    pub connect_attributes: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Keep alive timeout (KATO), ms.
    pub keep_alive_timeout: U32,
    /// NVM set identifier (NVMSETID).
    pub nvm_set_identifier: U16,
    /// Reserved.
    pub reserved_2: [u8; 10],
}

/// Property Get (Base 2.1, section 6.5, figure 551).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PropertyGetCommand {
    /// The fields of all fabrics commands.
    pub common: FabricsCommand,
    /// Attributes (ATTRIB): property return size (PRS) in bits 2 to 0.
    pub attributes: u8,
    /// Reserved.
    pub reserved_1: [u8; 3],
    /// Offset (OFST) of the property.
    pub offset: U32,
    /// Reserved.
    pub reserved_2: [u8; 16],
}

/// Property Set (Base 2.1, section 6.6, figure 553).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PropertySetCommand {
    /// The fields of all fabrics commands.
    pub common: FabricsCommand,
    /// Attributes (ATTRIB): property update size (PUS) in bits 2 to 0.
    pub attributes: u8,
    /// Reserved.
    pub reserved_1: [u8; 3],
    /// Offset (OFST) of the property.
    pub offset: U32,
    /// Value (VALUE).
    pub value: U64,
    /// Reserved.
    pub reserved_2: [u8; 8],
}

/// Authentication Send and Authentication Receive (Base 2.1, sections 6.2 and 6.1, figures 543 and
/// 541).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AuthenticationCommand {
    /// The fields of all fabrics commands.
    pub common: FabricsCommand,
    /// Reserved.
    pub reserved_1: u8,
    /// SP specific 0 and 1 (SPSP0, SPSP1).
    pub sp_specific: [u8; 2],
    /// Security protocol (SECP).
    pub security_protocol: u8,
    /// Of Send, transfer length (TL); of Receive, allocation length (AL). Bytes.
    pub length: U32,
    /// Reserved.
    pub reserved_2: [u8; 16],
}

/// Disconnect (Base 2.1, section 6.4, figure 549).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DisconnectCommand {
    /// The fields of all fabrics commands.
    pub common: FabricsCommand,
    /// Record format (RECFMT).
    pub record_format: U16,
    /// Reserved.
    pub reserved: [u8; 22],
}

const _: () = {
    const BYTES: usize = size_of::<SubmissionQueueEntry>();
    assert!(size_of::<ConnectCommand>() == BYTES);
    assert!(size_of::<PropertyGetCommand>() == BYTES);
    assert!(size_of::<PropertySetCommand>() == BYTES);
    assert!(size_of::<AuthenticationCommand>() == BYTES);
    assert!(size_of::<DisconnectCommand>() == BYTES);
};
