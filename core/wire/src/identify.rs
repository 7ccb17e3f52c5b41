//! Data of Identify (Base 2.0, section 5.17; NVM Command Set 1.0 and Key Value Command Set 1.0, section 4.1.5).

use crate::Error;
use crate::bytes::{array_at, head, put, u16_at, u32_at, u64_at};
use crate::fabrics::{VERSION, decode_nqn};
use crate::nvme::Command;

/// Bytes of every structure here.
pub const IDENTIFY_BYTES: usize = 4096;
/// Namespace ids of a list.
pub const LIST_ENTRIES: usize = IDENTIFY_BYTES / 4;

/// Which structure is asked for: bits 7 to 0 of word 10 (CNS).
pub mod structure {
    /// A namespace, NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Ids of active namespaces.
    pub const NAMESPACE_LIST: u8 = 0x02;
    /// Names of a namespace.
    pub const NAMESPACE_NAMES: u8 = 0x03;
    /// A namespace, as its command set has it.
    pub const NAMESPACE_OF_SET: u8 = 0x05;
    /// The controller, as a command set has it.
    pub const CONTROLLER_OF_SET: u8 = 0x06;
    /// Ids of active namespaces of a command set.
    pub const NAMESPACE_LIST_OF_SET: u8 = 0x07;
    /// A namespace, whatever its command set.
    pub const NAMESPACE_OF_ANY: u8 = 0x08;
    /// Combinations of command sets.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// A command set (CSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSet {
    /// Blocks.
    Block = 0,
    /// Keys and values.
    KeyValue = 1,
}

/// A command for the structure `which`; `set` counts for those that have one.
pub fn identify(id: u16, which: u8, namespace: u32, set: CommandSet) -> Command {
    let mut command = Command::new(crate::nvme::admin::IDENTIFY, id, namespace);
    command.data.bytes = IDENTIFY_BYTES as u32;
    command.cdw10 = u32::from(which);
    command.cdw11 = (set as u32) << 24;
    command
}

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// I/O.
    Io = 1,
    /// Discovery.
    Discovery = 2,
}

/// The controller, as far as it differs from one of ours to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controller<'a> {
    /// Its id.
    pub id: u16,
    /// What it is for.
    pub kind: ControllerKind,
    /// The subsystem's serial number, ASCII, up to 20 bytes.
    pub serial: &'a str,
    /// The version of the software, ASCII, up to 8 bytes.
    pub version: &'a str,
    /// Name of the subsystem.
    pub subsystem: &'a str,
    /// Most bytes of data of a command: 4096 << this; 0 is no limit (MDTS).
    pub transfer_shift: u8,
    /// Asynchronous events that are told, as in feature 0Bh.
    pub events: u32,
    /// Event requests held, less one.
    pub event_requests: u8,
    /// Commands under way in a queue at most.
    pub commands_max: u16,
    /// Highest namespace id, or number of namespaces (NN).
    pub namespaces_max: u32,
    /// Optional block commands, as in ONCS.
    pub block_commands: u16,
    /// Bytes of data in a command's capsule; a multiple of 16.
    pub capsule_data_bytes: u32,
}

/// Keep alive timeouts are in steps of so many times 100 ms.
const KEEP_ALIVE_STEPS: u16 = 1;

impl<'a> Controller<'a> {
    /// Bits of [`Self::block_commands`].
    pub const COMPARE: u16 = 1 << 0;
    /// Bits of [`Self::block_commands`].
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Bits of [`Self::block_commands`].
    pub const WRITE_ZEROES: u16 = 1 << 3;

    /// The structure.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut bytes = [0; IDENTIFY_BYTES];
        text(&mut bytes[4..24], self.serial);
        text(&mut bytes[24..64], "Spillway");
        text(&mut bytes[64..72], self.version);
        bytes[72] = 0; // RAB
        bytes[76] = 1 << 1; // CMIC: a subsystem may have several controllers
        bytes[77] = self.transfer_shift;
        put(&mut bytes, 78, &self.id.to_le_bytes());
        put(&mut bytes, 80, &VERSION.to_le_bytes());
        put(&mut bytes, 92, &self.events.to_le_bytes());
        bytes[111] = self.kind as u8;
        bytes[258] = 3; // ACL: aborts at a time, less one
        bytes[259] = self.event_requests;
        bytes[261] = 1 << 1 | 1 << 2; // LPA: log 05h, offsets in logs
        put(&mut bytes, 320, &KEEP_ALIVE_STEPS.to_le_bytes());
        bytes[512] = 0x66; // SQES: commands of 2^6 bytes
        bytes[513] = 0x44; // CQES: completions of 2^4 bytes
        put(&mut bytes, 514, &self.commands_max.to_le_bytes());
        put(&mut bytes, 516, &self.namespaces_max.to_le_bytes());
        put(&mut bytes, 520, &self.block_commands.to_le_bytes());
        // SGLS: supported; offsets (data in the capsule); transport descriptors
        put(&mut bytes, 536, &(1u32 | 1 << 20 | 1 << 21).to_le_bytes());
        put(&mut bytes, 768, self.subsystem.as_bytes());
        let capsule = |data: u32| ((64 + data) / 16).to_le_bytes();
        put(&mut bytes, 1792, &capsule(self.capsule_data_bytes));
        put(&mut bytes, 1796, &1u32.to_le_bytes()); // IORCSZ, units of 16 bytes
        bytes[1803] = 1; // MSDBD: descriptors of a command
        bytes
    }

    /// Reads the structure.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for names that are no text.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let bytes: &[u8; IDENTIFY_BYTES] = head(bytes)?;
        let ascii = |range: core::ops::Range<usize>| {
            core::str::from_utf8(&bytes[range]).map(str::trim_end).map_err(|_| Error::Field("text"))
        };
        Ok(Self {
            id: u16_at(bytes, 78),
            kind: match bytes[111] {
                2 => ControllerKind::Discovery,
                _ => ControllerKind::Io,
            },
            serial: ascii(4..24)?,
            version: ascii(64..72)?,
            subsystem: decode_nqn(&bytes[768..1024]).ok_or(Error::Field("subsystem NQN"))?,
            transfer_shift: bytes[77],
            events: u32_at(bytes, 92),
            event_requests: bytes[259],
            commands_max: u16_at(bytes, 514),
            namespaces_max: u32_at(bytes, 516),
            block_commands: u16_at(bytes, 520),
            capsule_data_bytes: u32_at(bytes, 1792).saturating_mul(16).saturating_sub(64),
        })
    }
}

/// ASCII padded with spaces.
fn text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
}

/// A block namespace. Its blocks read as zeros after Deallocate, and Write Zeroes may deallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNamespace {
    /// Length, blocks.
    pub blocks: u64,
    /// Blocks that take memory.
    pub used_blocks: u64,
    /// log2 of the bytes of a block.
    pub block_shift: u8,
}

impl BlockNamespace {
    /// The structure.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut bytes = [0; IDENTIFY_BYTES];
        put(&mut bytes, 0, &self.blocks.to_le_bytes());
        put(&mut bytes, 8, &self.blocks.to_le_bytes());
        put(&mut bytes, 16, &self.used_blocks.to_le_bytes());
        bytes[24] = 1 << 0 | 1 << 4; // NSFEAT: thinly provisioned; the preferred sizes below hold
        bytes[30] = 1; // NMIC: several controllers may reach it
        bytes[33] = 1 | 1 << 3; // DLFEAT: zeros after Deallocate, also by Write Zeroes
        // NPWG, NPWA, NPDG, NPDA: pages, in blocks less one
        let page = (4096u32 >> self.block_shift).saturating_sub(1) as u16;
        for at in [64, 66, 68, 70] {
            put(&mut bytes, at, &page.to_le_bytes());
        }
        bytes[130] = self.block_shift; // LBAF 0
        bytes
    }

    /// Reads the structure.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for a block of more than 64 KiB or less than 512 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; IDENTIFY_BYTES] = head(bytes)?;
        let format = 128 + 4 * usize::from(bytes[26] & 0xf);
        let block_shift = bytes[format + 2];
        if !(9..=16).contains(&block_shift) {
            return Err(Error::Field("block size"));
        }
        Ok(Self { blocks: u64_at(bytes, 0), used_blocks: u64_at(bytes, 16), block_shift })
    }
}

/// A key-value namespace: a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolNamespace {
    /// Bytes that it may hold; 2^64 - 1 when nothing limits it.
    pub bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Most bytes of a value.
    pub value_bytes_max: u32,
}

impl PoolNamespace {
    /// The structure.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut bytes = [0; IDENTIFY_BYTES];
        put(&mut bytes, 0, &self.bytes.to_le_bytes());
        put(&mut bytes, 16, &self.used_bytes.to_le_bytes());
        bytes[24] = 1 << 0; // NSFEAT: thinly provisioned
        // KV format 0: key bytes, value bytes, any number of keys
        put(&mut bytes, 72, &u16::from(crate::kv::KEY_BYTES).to_le_bytes());
        put(&mut bytes, 76, &self.value_bytes_max.to_le_bytes());
        bytes
    }

    /// Reads the structure.
    ///
    /// # Errors
    /// [`Error::Short`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; IDENTIFY_BYTES] = head(bytes)?;
        Ok(Self {
            bytes: u64_at(bytes, 0),
            used_bytes: u64_at(bytes, 16),
            value_bytes_max: u32_at(bytes, 76),
        })
    }
}

/// What is told of a namespace of any command set: that it is ready, and whether several controllers may
/// reach it.
pub fn namespace_of_any(shared: bool) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    bytes[0] = 1 << 0; // NSFEAT: thinly provisioned
    bytes[1] = u8::from(shared); // NMIC
    bytes[14] = 1; // NSTAT: ready
    bytes
}

/// The names of a namespace: its UUID, if it has one, and its command set.
pub fn namespace_names(uuid: Option<u128>, set: CommandSet) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    let mut at = 0;
    if let Some(uuid) = uuid {
        bytes[0] = NAME_UUID;
        bytes[1] = 16;
        put(&mut bytes, 4, &uuid.to_be_bytes());
        at = 20;
    }
    bytes[at] = NAME_COMMAND_SET;
    bytes[at + 1] = 1;
    bytes[at + 4] = set as u8;
    bytes
}

const NAME_UUID: u8 = 3;
const NAME_COMMAND_SET: u8 = 4;

/// Reads the UUID among the names of a namespace.
///
/// # Errors
/// [`Error::Field`] for a name that reaches beyond `bytes`.
pub fn namespace_uuid(bytes: &[u8]) -> Result<Option<u128>, Error> {
    let mut rest = bytes;
    while let [kind, length, _, _, names @ ..] = rest {
        if *length == 0 {
            break;
        }
        let name = names.get(..usize::from(*length)).ok_or(Error::Field("namespace name"))?;
        if *kind == NAME_UUID && name.len() == 16 {
            return Ok(Some(u128::from_be_bytes(array_at(name, 0))));
        }
        rest = &names[name.len()..];
    }
    Ok(None)
}

/// A list of the namespace ids in `ids`, which ascend.
pub fn namespace_list(ids: impl Iterator<Item = u32>) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    for (place, id) in bytes.chunks_exact_mut(4).zip(ids) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Reads a list of namespace ids.
pub fn decode_namespace_list(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|id| u32_at(id, 0)).take_while(|&id| id != 0)
}

/// The one combination of command sets that a controller has: bit n is command set n.
pub fn command_sets(sets: u64) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    put(&mut bytes, 0, &sets.to_le_bytes());
    bytes
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
    fn names_and_lists_come_back() {
        let uuid = 0x1122_3344_5566_4788_99aa_bbcc_ddee_ff00;
        let names = namespace_names(Some(uuid), CommandSet::Block);
        assert_eq!(names[..8], [3, 16, 0, 0, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(names[20..25], [4, 1, 0, 0, 0]);
        assert_eq!(namespace_uuid(&names), Ok(Some(uuid)));
        assert_eq!(namespace_uuid(&namespace_names(None, CommandSet::KeyValue)), Ok(None));
        assert!(namespace_uuid(&[3, 16, 0, 0, 1]).is_err());
        let list = namespace_list([2, 5, 9].into_iter());
        assert!(decode_namespace_list(&list).eq([2, 5, 9]));
    }
}
