//! Identify and its data (Base 2.1, section 5.1.13; NVM Command Set 1.0 and Key Value Command Set 1.0,
//! section 4.1.5).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::Error;
use crate::bytes::put;
use crate::nvme::Command;

mod controller;
mod namespace;

pub use controller::{Controller, ControllerKind, IdentifyController};
pub use namespace::{
    BlockNamespace, IdentifyNamespace, IndependentIdentifyNamespace, KvFormat, KvIdentifyNamespace,
    LbaFormat, PoolNamespace, namespace_of_any,
};

/// Bytes of every Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;
/// Entries of a namespace list.
pub const LIST_ENTRIES: usize = IDENTIFY_BYTES / 4;

/// The numbers of data structures (CNS, figure 310).
pub mod structure {
    /// A namespace, NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Ids of active namespaces.
    pub const NAMESPACE_LIST: u8 = 0x02;
    /// Names of a namespace.
    pub const NAMESPACE_NAMES: u8 = 0x03;
    /// A namespace, in the structure of its command set.
    pub const NAMESPACE_OF_SET: u8 = 0x05;
    /// The controller, in the structure of a command set.
    pub const CONTROLLER_OF_SET: u8 = 0x06;
    /// Ids of active namespaces of a command set.
    pub const NAMESPACE_LIST_OF_SET: u8 = 0x07;
    /// A namespace, independent of its command set.
    pub const NAMESPACE_OF_ANY: u8 = 0x08;
    /// Combinations of command sets.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// A command set (CSI, figure 311).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSet {
    /// Blocks.
    Block = 0,
    /// Keys and values.
    KeyValue = 1,
}

/// Command dwords 10 to 15 of Identify (Base 2.1, section 5.1.13.1, figures 307 to 309).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyDwords {
    /// Controller or namespace structure (CNS).
    pub controller_or_namespace_structure: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Controller identifier (CNTID).
    pub controller_identifier: U16,
    /// CNS specific identifier (CNSSID).
    pub cns_specific_identifier: U16,
    /// Reserved.
    pub reserved_2: u8,
    /// Command set identifier (CSI).
    pub command_set_identifier: u8,
    /// Dwords 12 and 13.
    pub not_used: [U32; 2],
    /// UUID index (UIDX) in bits 6 to 0.
    pub uuid_index: U32,
    /// Dword 15.
    pub reserved_3: U32,
}

const _: () = assert!(size_of::<IdentifyDwords>() == 24);

impl IdentifyDwords {
    /// The dwords of a command.
    pub fn of(command: &Command) -> Self {
        transmute!(command.dwords())
    }
}

/// A command for the structure `which`. `set` matters only to structures of a command set.
pub fn identify(id: u16, which: u8, namespace: u32, set: CommandSet) -> Command {
    let mut command = Command::new(crate::nvme::admin::IDENTIFY, id, namespace);
    command.data.bytes = IDENTIFY_BYTES as u32;
    let mut dwords = IdentifyDwords::new_zeroed();
    dwords.controller_or_namespace_structure = which;
    dwords.command_set_identifier = set as u8;
    command.set_dwords(transmute!(dwords));
    command
}

/// The start of a namespace identification descriptor, before the identifier (Base 2.1, section
/// 5.1.13.2.3, figure 315).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NamespaceIdentificationDescriptor {
    /// Namespace identifier type (NIDT).
    pub namespace_identifier_type: u8,
    /// Namespace identifier length (NIDL), bytes; 0 ends the list.
    pub namespace_identifier_length: u8,
    /// Reserved.
    pub reserved: [u8; 2],
}

const _: () = assert!(size_of::<NamespaceIdentificationDescriptor>() == 4);

const NAME_UUID: u8 = 3;
const NAME_COMMAND_SET: u8 = 4;

/// The names of a namespace: its UUID, if it has one, and its command set.
pub fn namespace_names(uuid: Option<u128>, set: CommandSet) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    let mut end = 0;
    let mut append = |kind: u8, name: &[u8]| {
        let descriptor = NamespaceIdentificationDescriptor {
            namespace_identifier_type: kind,
            namespace_identifier_length: name.len() as u8,
            reserved: [0; _],
        };
        for part in [descriptor.as_bytes(), name] {
            put(&mut bytes, end, part);
            end += part.len();
        }
    };
    if let Some(uuid) = uuid {
        append(NAME_UUID, &uuid.to_be_bytes());
    }
    append(NAME_COMMAND_SET, &[set as u8]);
    bytes
}

/// Finds the UUID among the names of a namespace.
///
/// # Errors
/// [`Error::Field`] for a name that reaches beyond `bytes`.
pub fn namespace_uuid(bytes: &[u8]) -> Result<Option<u128>, Error> {
    let mut rest = bytes;
    while let Ok((descriptor, names)) = NamespaceIdentificationDescriptor::ref_from_prefix(rest) {
        let length = usize::from(descriptor.namespace_identifier_length);
        if length == 0 {
            break;
        }
        let (name, after) = names.split_at_checked(length).ok_or(Error::Field("namespace name"))?;
        if descriptor.namespace_identifier_type == NAME_UUID
            && let Ok(uuid) = name.try_into()
        {
            return Ok(Some(u128::from_be_bytes(uuid)));
        }
        rest = after;
    }
    Ok(None)
}

/// Namespace list (Base 2.1, section 4.6.2, figure 138).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NamespaceList {
    /// Identifiers (ID), ascending; 0 ends the list.
    pub identifiers: [U32; LIST_ENTRIES],
}

const _: () = assert!(size_of::<NamespaceList>() == 4096);

/// A list of the namespace ids in `ids`, in ascending order.
pub fn namespace_list(ids: impl Iterator<Item = u32>) -> [u8; IDENTIFY_BYTES] {
    let mut list = NamespaceList::new_zeroed();
    for (place, id) in list.identifiers.iter_mut().zip(ids) {
        *place = id.into();
    }
    transmute!(list)
}

/// Decodes a list of namespace ids. The list may be truncated.
pub fn decode_namespace_list(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (ids, _) = bytes.as_chunks();
    ids.iter().map(|&id| U32::from_bytes(id).get()).take_while(|&id| id != 0)
}

/// Identify I/O command set data (Base 2.1, section 5.1.13.2.19, figures 327 and 328).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyIoCommandSet {
    /// I/O command set combinations (IOCSC0 to IOCSC511): bit n is command set n; 0 ends the list.
    pub io_command_set_combinations: [U64; 512],
}

const _: () = assert!(size_of::<IdentifyIoCommandSet>() == 4096);

/// The one combination of command sets that a controller has: bit n is command set n.
pub fn command_sets(sets: u64) -> [u8; IDENTIFY_BYTES] {
    let mut combinations = IdentifyIoCommandSet::new_zeroed();
    combinations.io_command_set_combinations[0] = sets.into();
    transmute!(combinations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_comes_back() {
        let controller = Controller {
            id: 7,
            kind: ControllerKind::Io,
            serial: "0123456789abcdef",
            version: "0.1.0",
            subsystem: "nqn.2026-11.io.spillway:blocks",
            transfer_shift: 8,
            events: 1 << 8,
            event_requests: 3,
            commands_max: 128,
            namespaces_max: 1024,
            block_commands: Controller::COMPARE | Controller::WRITE_ZEROES,
            capsule_data_bytes: 4096,
        };
        let bytes = controller.encode();
        assert_eq!(bytes[1792..1796], [4, 1, 0, 0], "4 KiB travel in a capsule of 260 units");
        assert_eq!(Controller::decode(&bytes), Ok(controller));
        assert!(Controller::decode(&bytes[..4000]).is_err());
    }

    #[test]
    fn namespaces_come_back() {
        let blocks = BlockNamespace { blocks: 1 << 20, used_blocks: 5, block_shift: 12 };
        assert_eq!(BlockNamespace::decode(&blocks.encode()), Ok(blocks));
        let mut bytes = blocks.encode();
        bytes[130] = 40;
        assert_eq!(BlockNamespace::decode(&bytes), Err(Error::Field("block size")));
        let pool = PoolNamespace { bytes: u64::MAX, used_bytes: 3, value_bytes_max: 16 << 20 };
        assert_eq!(PoolNamespace::decode(&pool.encode()), Ok(pool));
        assert_eq!(pool.encode()[72..80], [12, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn the_command_is_laid_out_as_figures_307_and_308_say() {
        let command = identify(1, structure::NAMESPACE_OF_SET, 7, CommandSet::KeyValue);
        let bytes = command.encode();
        assert_eq!(bytes[4..8], [7, 0, 0, 0]);
        assert_eq!(bytes[32..48], [0, 0x10, 0, 0, 0, 0, 0, 0x5a, 5, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(IdentifyDwords::of(&command).command_set_identifier, 1);
    }

    #[test]
    fn command_sets_stand_in_the_first_combination() {
        let bytes = command_sets(0x0201);
        assert_eq!(bytes[..9], [1, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn names_and_lists_come_back() {
        let uuid = 0x1122_3344_5566_4788_99aa_bbcc_ddee_ff00;
        let names = namespace_names(Some(uuid), CommandSet::Block);
        assert_eq!(names[..8], [3, 16, 0, 0, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(names[20..25], [4, 1, 0, 0, 0]);
        assert_eq!(namespace_uuid(&names), Ok(Some(uuid)));
        assert_eq!(namespace_uuid(&namespace_names(None, CommandSet::KeyValue)), Ok(None));
        assert!(namespace_uuid(&[3, 16, 0, 0, 1]).is_err());
        let list = namespace_list([2, 5, 9].into_iter());
        assert_eq!(list[..13], [2, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 0]);
        assert!(decode_namespace_list(&list).eq([2, 5, 9]));
    }
}
