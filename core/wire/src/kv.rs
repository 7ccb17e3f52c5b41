//! Key-value commands, and vendor-specific commands for pools.
//!
//! The Key Value Command Set 1.0 gives a key of up to 16 bytes in words 2, 3, 14 and 15. Spillway's keys
//! have 12 bytes: the object in bytes 0 to 7, the index in bytes 8 to 11, both little-endian. So word 2
//! is the object's low half, word 3 its high half, word 14 the index; word 15 is zero.
//!
//! A Connect of an admin queue to a subsystem of pools ends every earlier association of the same host
//! name and host id before it is answered. Commands of that association are executed before, or never. So a
//! host that lost its connection may repeat a Store on the next one: no late copy of it overwrites
//! values that are stored afterwards. Hosts that need several associations use several host ids.

use spillway_types::{Key, Refusal};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::nvme::{Command, Status};

mod key_list;
mod pools;

pub use key_list::{KeyDataStructure, KeyList};
pub use pools::{
    CreatePool, CreatePoolData, PoolEntry, PoolEntryData, STATISTICS_BYTES, StatisticsData,
    decode_statistics, encode_statistics,
};

/// Bytes of a key.
pub const KEY_BYTES: u8 = 12;
/// The command set's number.
pub const COMMAND_SET: u8 = 1;

/// Opcodes of I/O queues for pools. Those from C0h are Spillway's own.
pub mod io {
    /// Store: a put.
    pub const STORE: u8 = 0x01;
    /// Retrieve: a get.
    pub const RETRIEVE: u8 = 0x02;
    /// List keys.
    pub const LIST: u8 = 0x06;
    /// Delete: a flush of one value.
    pub const DELETE: u8 = 0x10;
    /// Exist: checks whether a key exists.
    pub const EXIST: u8 = 0x14;
    /// Flush object: removes all values of the object in words 2 and 3. The result's low word is the
    /// number of pages freed, at most 2^32 - 1.
    pub const FLUSH_OBJECT: u8 = 0xc0;
    /// Exclusive get: Retrieve and Delete in one step.
    pub const TAKE: u8 = 0xc2;
}

/// Opcodes of the admin queue for pools, all Spillway's own.
pub mod admin {
    /// Create pool: data out is a [`super::CreatePool`]. The result's low word is the pool's number,
    /// which is its namespace id. An existing shared pool is joined.
    pub const CREATE_POOL: u8 = 0xc1;
    /// Join the shared pool whose UUID (16 bytes) is the data out. The result's low word is its number.
    pub const JOIN_POOL: u8 = 0xc5;
    /// Destroy pool: destroys the private pool of the namespace id, or leaves the shared one.
    pub const DESTROY_POOL: u8 = 0xc8;
    /// Bind pool: binds the private pool of the namespace id to this connection. The pool is destroyed soon after
    /// the last connection that bound it has ended. Only the ring serves this command.
    pub const BIND_POOL: u8 = 0xcc;
    /// Statistics: data in is the client's counters, [`super::STATISTICS_BYTES`] bytes.
    pub const STATISTICS: u8 = 0xca;
    /// List pools: data in is a [`super::PoolEntry`] for each of the client's pools, as many as fit. The result's low
    /// word is the number of pools.
    pub const LIST_POOLS: u8 = 0xce;
}

/// Bits of [`KeyValueDwords::store_options`]. The options that depend on whether the key exists are not supported.
pub mod store_option {
    /// Do not compress. This is a hint; the store decides.
    pub const NO_COMPRESSION: u8 = 1 << 2;
}

/// Command dwords 10 to 15 of key-value commands (Key Value Command Set 1.0, section 3.2, figures 6 to
/// 31). The key's first 64 bits are in dwords 2 and 3.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct KeyValueDwords {
    /// Value size (VS) of Store, host buffer size (HBS) of Retrieve and List; bytes.
    pub value_size: U32,
    /// Key length (KL), bytes.
    pub key_length: u8,
    /// Store options (SO) and retrieve options (RO).
    pub store_options: u8,
    /// Reserved.
    pub reserved_1: U16,
    /// Dwords 12 and 13.
    pub reserved_2: [U32; 2],
    /// Bits 95 to 64 of the key.
    pub key_95_64: U32,
    /// Bits 127 to 96 of the key.
    pub key_127_96: U32,
}

const _: () = assert!(size_of::<KeyValueDwords>() == 24);

impl KeyValueDwords {
    /// The dwords of a command.
    #[inline]
    pub fn of(command: &Command) -> Self {
        transmute!(command.dwords())
    }

    /// Whether dword 11 has no reserved bit set, and no option outside `allowed`.
    #[inline]
    pub fn has_only(&self, allowed: u8) -> bool {
        self.store_options & !allowed == 0 && self.reserved_1 == 0
    }
}

/// Writes `key` into a command.
pub fn set_key(command: &mut Command, key: Key) {
    set_object(command, key.object);
    let dwords = KeyValueDwords {
        key_length: KEY_BYTES,
        key_95_64: key.index.into(),
        key_127_96: U32::ZERO,
        ..KeyValueDwords::of(command)
    };
    command.set_dwords(transmute!(dwords));
}

/// Decodes a command's key.
///
/// # Errors
/// [`Status::KEY_SIZE`] if its length is not [`KEY_BYTES`], [`Status::INVALID_FIELD`] if bytes beyond
/// it are set.
#[inline]
pub fn key(command: &Command) -> Result<Key, Status> {
    let dwords = KeyValueDwords::of(command);
    if dwords.key_length != KEY_BYTES {
        return Err(Status::KEY_SIZE.finally());
    }
    if dwords.key_127_96 != 0 {
        return Err(Status::INVALID_FIELD.finally());
    }
    Ok(Key::new(object(command), dwords.key_95_64.get()))
}

/// The key from which List starts. `None` if its length is 0: List starts from the first key.
///
/// # Errors
/// As for [`key`].
pub fn list_start(command: &Command) -> Result<Option<Key>, Status> {
    let dwords = KeyValueDwords::of(command);
    if dwords.key_length == 0 { Ok(None) } else { key(command).map(Some) }
}

/// The object in a command.
pub const fn object(command: &Command) -> u64 {
    command.cdw2 as u64 | (command.cdw3 as u64) << 32
}

/// Writes the object into a command.
pub const fn set_object(command: &mut Command, object: u64) {
    command.cdw2 = object as u32;
    command.cdw3 = (object >> 32) as u32;
}

/// A command with or without a key, and with a data buffer of `bytes` bytes.
#[inline]
fn command(opcode: u8, id: u16, pool: u32, key: Option<Key>, bytes: u32) -> Command {
    let mut command = Command::new(opcode, id, pool);
    let (key_length, key) = match key {
        Some(key) => (KEY_BYTES, key),
        None => (0, Key::new(0, 0)),
    };
    set_object(&mut command, key.object);
    command.data.bytes = bytes;
    command.set_dwords(transmute!(KeyValueDwords {
        value_size: bytes.into(),
        key_length,
        store_options: 0,
        reserved_1: U16::ZERO,
        reserved_2: [U32::ZERO; 2],
        key_95_64: key.index.into(),
        key_127_96: U32::ZERO,
    }));
    command
}

/// A Store of a value of `bytes` bytes.
#[inline]
pub fn store(id: u16, pool: u32, key: Key, bytes: u32) -> Command {
    command(io::STORE, id, pool, Some(key), bytes)
}

/// A get into a buffer of `bytes` bytes: [`io::RETRIEVE`] or [`io::TAKE`].
#[inline]
pub fn retrieve(opcode: u8, id: u16, pool: u32, key: Key, bytes: u32) -> Command {
    command(opcode, id, pool, Some(key), bytes)
}

/// A command on a key without data: [`io::DELETE`] or [`io::EXIST`].
#[inline]
pub fn with_key(opcode: u8, id: u16, pool: u32, key: Key) -> Command {
    command(opcode, id, pool, Some(key), 0)
}

/// A List from `start` on, into a buffer of `bytes` bytes.
pub fn list(id: u16, pool: u32, start: Option<Key>, bytes: u32) -> Command {
    command(io::LIST, id, pool, start, bytes)
}

/// A Flush Object.
pub const fn flush_object(id: u16, pool: u32, object: u64) -> Command {
    let mut command = Command::new(io::FLUSH_OBJECT, id, pool);
    set_object(&mut command, object);
    command
}

/// The result of a Store that was refused with [`Status::CAPACITY`]: the reason.
pub const fn refusal_result(refusal: Refusal) -> u64 {
    match refusal {
        Refusal::AtTarget => 1,
        Refusal::Frozen => 3,
        Refusal::NodeFull | Refusal::Length | Refusal::NoPool => 2,
    }
}

/// The reason why a Store was refused, from its result.
pub const fn refusal_of(result: u64) -> Refusal {
    match result {
        1 => Refusal::AtTarget,
        3 => Refusal::Frozen,
        _ => Refusal::NodeFull,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::Direction;

    #[test]
    fn each_refusal_has_the_result_that_the_protocol_page_lists() {
        for (refusal, result, read) in [
            (Refusal::AtTarget, 1, Refusal::AtTarget),
            (Refusal::NodeFull, 2, Refusal::NodeFull),
            (Refusal::Frozen, 3, Refusal::Frozen),
            (Refusal::Length, 2, Refusal::NodeFull),
            (Refusal::NoPool, 2, Refusal::NodeFull),
        ] {
            assert_eq!(refusal_result(refusal), result, "{refusal:?}");
            assert_eq!(refusal_of(result), read);
        }
    }

    #[test]
    fn a_key_stands_in_words_2_3_and_14() {
        let command = store(1, 2, Key::new(0x1122_3344_5566_7788, 0x99aa_bbcc), 4096);
        let bytes = command.encode();
        assert_eq!(bytes[8..16], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(bytes[56..64], [0xcc, 0xbb, 0xaa, 0x99, 0, 0, 0, 0]);
        assert_eq!(bytes[40..48], [0, 0x10, 0, 0, 12, 0, 0, 0]);
        assert_eq!(key(&command), Ok(Key::new(0x1122_3344_5566_7788, 0x99aa_bbcc)));
    }

    #[test]
    fn keys_of_another_length_are_refused() {
        let mut command = with_key(io::DELETE, 1, 1, Key::new(1, 1));
        command.cdw15 = 1;
        assert_eq!(key(&command), Err(Status::INVALID_FIELD.finally()));
        command.cdw11 = 16;
        assert_eq!(key(&command), Err(Status::KEY_SIZE.finally()));
        command.cdw11 = 0;
        assert_eq!(list_start(&command), Ok(None));
    }

    #[test]
    fn vendor_opcodes_follow_the_rule_of_directions() {
        for (opcode, direction) in [
            (io::FLUSH_OBJECT, Direction::None),
            (io::TAKE, Direction::In),
            (admin::CREATE_POOL, Direction::Out),
            (admin::JOIN_POOL, Direction::Out),
            (admin::DESTROY_POOL, Direction::None),
            (admin::STATISTICS, Direction::In),
            (admin::LIST_POOLS, Direction::In),
        ] {
            assert_eq!(Direction::of(opcode), Some(direction), "{opcode:#x}");
            assert!(opcode >= 0xc0, "{opcode:#x} is not the vendor's");
        }
    }
}
