//! Submission queue entries: commands.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

/// Bytes of a command.
pub const COMMAND_BYTES: usize = size_of::<SubmissionQueueEntry>();

/// An SGL descriptor: a data block, or a transport data block (Base 2.1, section 4.3.2, figures 114,
/// 117 and 122).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address (ADDR). For the subtype offset, the offset in the capsule.
    pub address: U64,
    /// Length (LEN), bytes.
    pub length: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// SGL identifier (SGLID): type in bits 7 to 4, subtype in bits 3 to 0.
    pub sgl_identifier: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

/// A submission queue entry: the common command format (Base 2.1, section 4.1.1, figures 91 and 92).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SubmissionQueueEntry {
    /// Opcode (OPC): bits 7 to 0 of command dword 0.
    pub opcode: u8,
    /// Bits 15 to 8 of command dword 0: PRP or SGL for data transfer (PSDT) in bits 7 and 6, fused
    /// operation (FUSE) in bits 1 and 0.
    pub flags: u8,
    /// Command identifier (CID): bits 31 to 16 of command dword 0.
    pub command_identifier: U16,
    /// Namespace identifier (NSID).
    pub namespace_identifier: U32,
    /// Command dword 2 (CDW2).
    pub command_dword_2: U32,
    /// Command dword 3 (CDW3).
    pub command_dword_3: U32,
    /// Metadata pointer (MPTR).
    pub metadata_pointer: U64,
    /// Data pointer (DPTR): SGL entry 1 (SGL1).
    pub data_pointer: SglDescriptor,
    /// Command dword 10 (CDW10).
    pub command_dword_10: U32,
    /// Command dword 11 (CDW11).
    pub command_dword_11: U32,
    /// Command dword 12 (CDW12).
    pub command_dword_12: U32,
    /// Command dword 13 (CDW13).
    pub command_dword_13: U32,
    /// Command dword 14 (CDW14).
    pub command_dword_14: U32,
    /// Command dword 15 (CDW15).
    pub command_dword_15: U32,
}

const _: () = assert!(size_of::<SubmissionQueueEntry>() == 64);

impl From<&Command> for SubmissionQueueEntry {
    #[inline]
    fn from(command: &Command) -> Self {
        Self {
            opcode: command.opcode,
            flags: command.flags,
            command_identifier: command.id.into(),
            namespace_identifier: command.namespace.into(),
            command_dword_2: command.cdw2.into(),
            command_dword_3: command.cdw3.into(),
            metadata_pointer: command.metadata.into(),
            data_pointer: command.data.into(),
            command_dword_10: command.cdw10.into(),
            command_dword_11: command.cdw11.into(),
            command_dword_12: command.cdw12.into(),
            command_dword_13: command.cdw13.into(),
            command_dword_14: command.cdw14.into(),
            command_dword_15: command.cdw15.into(),
        }
    }
}

impl From<&SubmissionQueueEntry> for Command {
    #[inline]
    fn from(entry: &SubmissionQueueEntry) -> Self {
        Self {
            opcode: entry.opcode,
            flags: entry.flags,
            id: entry.command_identifier.get(),
            namespace: entry.namespace_identifier.get(),
            cdw2: entry.command_dword_2.get(),
            cdw3: entry.command_dword_3.get(),
            metadata: entry.metadata_pointer.get(),
            data: entry.data_pointer.into(),
            cdw10: entry.command_dword_10.get(),
            cdw11: entry.command_dword_11.get(),
            cdw12: entry.command_dword_12.get(),
            cdw13: entry.command_dword_13.get(),
            cdw14: entry.command_dword_14.get(),
            cdw15: entry.command_dword_15.get(),
        }
    }
}

impl From<DataPointer> for SglDescriptor {
    #[inline]
    fn from(data: DataPointer) -> Self {
        Self {
            address: data.address.into(),
            length: data.bytes.into(),
            reserved: [0; 3],
            sgl_identifier: data.kind,
        }
    }
}

impl From<SglDescriptor> for DataPointer {
    #[inline]
    fn from(descriptor: SglDescriptor) -> Self {
        Self {
            address: descriptor.address.get(),
            bytes: descriptor.length.get(),
            kind: descriptor.sgl_identifier,
        }
    }
}

/// The location of a command's data: an [`SglDescriptor`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataPointer {
    /// An address or an offset, depending on [`Self::kind`].
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

    /// A pointer to `bytes` bytes that the transport moves.
    pub const fn transport(bytes: u32) -> Self {
        Self { address: 0, bytes, kind: Self::TRANSPORT }
    }

    /// A pointer to `bytes` bytes at the start of the capsule's data.
    pub const fn in_capsule(bytes: u32) -> Self {
        Self { address: 0, bytes, kind: Self::IN_CAPSULE }
    }
}

/// A command: a [`SubmissionQueueEntry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The opcode.
    pub opcode: u8,
    /// Bits 7 and 6: the format of the data pointer; bits 1 and 0: fused operation.
    pub flags: u8,
    /// The identifier of the command until its completion.
    pub id: u16,
    /// The namespace id.
    pub namespace: u32,
    /// Command specific.
    pub cdw2: u32,
    /// Command specific.
    pub cdw3: u32,
    /// Metadata pointer.
    pub metadata: u64,
    /// The location of the data.
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
    /// The [`Self::flags`] for an SGL descriptor as data pointer. NVMe over fabrics allows no other.
    pub const SGL: u8 = 0x40;

    /// A command with an opcode, the flags of fabrics, an id and a namespace. All other fields are 0.
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

    /// Decodes a command.
    pub fn decode(bytes: &[u8; COMMAND_BYTES]) -> Self {
        let entry: &SubmissionQueueEntry = transmute_ref!(bytes);
        entry.into()
    }

    /// Encodes the command.
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        transmute!(SubmissionQueueEntry::from(self))
    }

    /// Command dwords 10 to 15. Their layout depends on the opcode.
    #[inline]
    pub fn dwords(&self) -> [U32; 6] {
        [self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15].map(U32::new)
    }

    /// Sets command dwords 10 to 15.
    #[inline]
    pub fn set_dwords(&mut self, dwords: [U32; 6]) {
        [self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15] =
            dwords.map(U32::get);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::block;

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

    /// Every field of a command. Each has other bytes.
    #[test]
    fn a_command_is_laid_out_as_figure_92_says() {
        let command = Command {
            opcode: 0x01,
            flags: 0x40,
            id: 0x0302,
            namespace: 0x0706_0504,
            cdw2: 0x0b0a_0908,
            cdw3: 0x0f0e_0d0c,
            metadata: 0x1716_1514_1312_1110,
            data: DataPointer { address: 0x1f1e_1d1c_1b1a_1918, bytes: 0x2322_2120, kind: 0x5a },
            cdw10: 0x2b2a_2928,
            cdw11: 0x2f2e_2d2c,
            cdw12: 0x3332_3130,
            cdw13: 0x3736_3534,
            cdw14: 0x3b3a_3938,
            cdw15: 0x3f3e_3d3c,
        };
        let mut bytes: [u8; 64] = core::array::from_fn(|at| at as u8);
        bytes[0] = 0x01;
        bytes[1] = 0x40;
        bytes[36..40].copy_from_slice(&[0, 0, 0, 0x5a]);
        assert_eq!(command.encode(), bytes);
        assert_eq!(Command::decode(&bytes), command);
    }
}
