//! Key-value commands, and the commands of pools that NVMe has none for.
//!
//! The Key Value Command Set 1.0 gives a key of up to 16 bytes in words 2, 3, 14 and 15. Spillway's keys
//! have 12 bytes: the object in bytes 0 to 7, the index in bytes 8 to 11, both little-endian. So word 2
//! is the object's low half, word 3 its high half, word 14 the index; word 15 is zero.
//!
//! A Connect of an admin queue to a subsystem of pools ends every earlier association of the same host
//! name and host id before it is answered: whatever that had sent is carried out before, or never. So a
//! host that lost its connection may send a Store again on the next one, and no late copy of it undoes
//! what is stored afterwards. Hosts that want several associations use several host ids.

use spillway_types::{Key, PoolSpec, PoolSpecError, Refusal, Statistics};

use crate::Error;
use crate::bytes::{array_at, head, put, u32_at, u64_at};
use crate::nvme::{Command, Status};

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
    /// Whether a key exists.
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
    /// which is its namespace id. A shared pool that is there is joined.
    pub const CREATE_POOL: u8 = 0xc1;
    /// Join the shared pool whose UUID (16 bytes) is the data out. The result's low word is its number.
    pub const JOIN_POOL: u8 = 0xc5;
    /// Destroys the private pool, or leaves the shared one, that the namespace id names.
    pub const DESTROY_POOL: u8 = 0xc8;
    /// Binds the private pool that the namespace id names to this connection: it is destroyed soon after
    /// the last connection that bound it has ended. Only the ring serves it.
    pub const BIND_POOL: u8 = 0xcc;
    /// Data in: the client's counters, [`super::STATISTICS_BYTES`].
    pub const STATISTICS: u8 = 0xca;
    /// Data in: a [`super::PoolEntry`] for each of the client's pools, as many as fit. The result's low
    /// word is how many pools there are.
    pub const LIST_POOLS: u8 = 0xce;
}

/// Bits of word 11 of Store. Those that make it depend on whether the key exists are not served.
pub mod store_option {
    /// Do not compress. It is a wish; the store decides.
    pub const NO_COMPRESSION: u32 = 1 << 10;
}

/// Writes `key` into a command.
pub fn set_key(command: &mut Command, key: Key) {
    set_object(command, key.object);
    command.cdw14 = key.index;
    command.cdw15 = 0;
    command.cdw11 = command.cdw11 & !0xff | u32::from(KEY_BYTES);
}

/// Reads a command's key.
///
/// # Errors
/// [`Status::KEY_SIZE`] when its length is not [`KEY_BYTES`], [`Status::INVALID_FIELD`] when bytes beyond
/// it are set.
pub fn key(command: &Command) -> Result<Key, Status> {
    if command.cdw11 & 0xff != u32::from(KEY_BYTES) {
        return Err(Status::KEY_SIZE.finally());
    }
    if command.cdw15 != 0 {
        return Err(Status::INVALID_FIELD.finally());
    }
    Ok(Key::new(object(command), command.cdw14))
}

/// The key that List starts from: none when its length is 0, which means from the first.
///
/// # Errors
/// As for [`key`].
pub fn list_start(command: &Command) -> Result<Option<Key>, Status> {
    if command.cdw11 & 0xff == 0 { Ok(None) } else { key(command).map(Some) }
}

/// The object that a command names.
pub const fn object(command: &Command) -> u64 {
    command.cdw2 as u64 | (command.cdw3 as u64) << 32
}

/// Writes the object into a command.
pub const fn set_object(command: &mut Command, object: u64) {
    command.cdw2 = object as u32;
    command.cdw3 = (object >> 32) as u32;
}

/// A command that puts a value of `bytes`.
pub fn store(id: u16, pool: u32, key: Key, bytes: u32) -> Command {
    let mut command = with_key(io::STORE, id, pool, key);
    command.cdw10 = bytes;
    command.data.bytes = bytes;
    command
}

/// A command that gets a value into a buffer of `bytes`: [`io::RETRIEVE`] or [`io::TAKE`].
pub fn retrieve(opcode: u8, id: u16, pool: u32, key: Key, bytes: u32) -> Command {
    let mut command = with_key(opcode, id, pool, key);
    command.cdw10 = bytes;
    command.data.bytes = bytes;
    command
}

/// A command on a key without data: [`io::DELETE`] or [`io::EXIST`].
pub fn with_key(opcode: u8, id: u16, pool: u32, key: Key) -> Command {
    let mut command = Command::new(opcode, id, pool);
    set_key(&mut command, key);
    command
}

/// A command that lists keys from `start` into a buffer of `bytes`.
pub fn list(id: u16, pool: u32, start: Option<Key>, bytes: u32) -> Command {
    let mut command = Command::new(io::LIST, id, pool);
    if let Some(key) = start {
        set_key(&mut command, key);
    }
    command.cdw10 = bytes;
    command.data.bytes = bytes;
    command
}

/// A command that removes an object.
pub const fn flush_object(id: u16, pool: u32, object: u64) -> Command {
    let mut command = Command::new(io::FLUSH_OBJECT, id, pool);
    set_object(&mut command, object);
    command
}

const LIST_HEADER_BYTES: usize = 4;
const LIST_ENTRY_BYTES: usize = 16;

/// The result of a Store that was refused with [`Status::CAPACITY`]: why.
pub const fn refusal_result(refusal: Refusal) -> u64 {
    match refusal {
        Refusal::AtTarget => 1,
        Refusal::Frozen => 3,
        Refusal::NodeFull | Refusal::Length | Refusal::NoPool => 2,
    }
}

/// Why a Store was refused, from its result.
pub const fn refusal_of(result: u64) -> Refusal {
    match result {
        1 => Refusal::AtTarget,
        3 => Refusal::Frozen,
        _ => Refusal::NodeFull,
    }
}

/// A list of keys, as List gives it: a count, then each key with its length, padded to 4 bytes.
#[derive(Debug)]
pub struct KeyList<'a> {
    bytes: &'a mut [u8],
    used: usize,
    keys: u32,
}

impl<'a> KeyList<'a> {
    /// An empty list in `bytes`, which are at least 4.
    ///
    /// # Errors
    /// [`Error::Short`].
    pub fn new(bytes: &'a mut [u8]) -> Result<Self, Error> {
        if bytes.len() < LIST_HEADER_BYTES {
            return Err(Error::Short { need: LIST_HEADER_BYTES, got: bytes.len() });
        }
        bytes.fill(0);
        Ok(Self { bytes, used: LIST_HEADER_BYTES, keys: 0 })
    }

    /// Bytes that a list of `keys` takes.
    pub const fn bytes(keys: usize) -> usize {
        LIST_HEADER_BYTES + keys * LIST_ENTRY_BYTES
    }

    /// How many keys fit in `bytes`.
    pub const fn room(bytes: usize) -> usize {
        bytes.saturating_sub(LIST_HEADER_BYTES) / LIST_ENTRY_BYTES
    }

    /// Adds a key; whether there was room.
    pub fn push(&mut self, key: Key) -> bool {
        let Some(entry) = self.bytes.get_mut(self.used..self.used + LIST_ENTRY_BYTES) else {
            return false;
        };
        put(entry, 0, &u16::from(KEY_BYTES).to_le_bytes());
        put(entry, 2, &key.object.to_le_bytes());
        put(entry, 10, &key.index.to_le_bytes());
        self.used += LIST_ENTRY_BYTES;
        self.keys += 1;
        put(self.bytes, 0, &self.keys.to_le_bytes());
        true
    }

    /// Reads the keys of a list.
    ///
    /// # Errors
    /// [`Error::Short`] when there are fewer bytes than the count says, [`Error::Field`] for a key of
    /// another length.
    pub fn decode(bytes: &[u8]) -> Result<impl Iterator<Item = Result<Key, Error>>, Error> {
        let count = u32_at(head::<LIST_HEADER_BYTES>(bytes)?, 0) as usize;
        let entries = &bytes[LIST_HEADER_BYTES..];
        let need = count.saturating_mul(LIST_ENTRY_BYTES);
        if entries.len() < need {
            return Err(Error::Short { need, got: entries.len() });
        }
        Ok(entries[..need].chunks_exact(LIST_ENTRY_BYTES).map(|entry| {
            if entry[..2] != u16::from(KEY_BYTES).to_le_bytes() {
                return Err(Error::Field("key length"));
            }
            Ok(Key::new(u64_at(entry, 2), u32_at(entry, 10)))
        }))
    }
}

/// What Create Pool sends: tmem's flag word in bytes 0 to 3, 4 bytes of zero, the UUID of a shared pool in
/// bytes 8 to 23, in the order in which it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatePool(pub PoolSpec);

impl CreatePool {
    /// Bytes of it.
    pub const BYTES: usize = 24;

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the flags.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, PoolSpecError> {
        let uuid = u128::from_be_bytes(array_at(bytes, 8));
        PoolSpec::from_flags(u32_at(bytes, 0), uuid).map(Self)
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.0.flags().to_le_bytes());
        put(&mut bytes, 8, &self.0.uuid().unwrap_or(0).to_be_bytes());
        bytes
    }
}

/// One pool of List Pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// Its number: its namespace id.
    pub number: u32,
    /// Of what kind it is.
    pub spec: PoolSpec,
    /// Pages that it holds.
    pub pages: u64,
    /// Tells it from every other pool that there was or will be, also in a store that was restarted
    /// empty: the store's own random number in the high half, its name of the pool in the low one. A
    /// client that reconnects compares it, because numbers come again.
    pub identity: u128,
}

impl PoolEntry {
    /// Bytes of it.
    pub const BYTES: usize = 48;

    /// Reads it: number, flag word, UUID, pages, identity.
    ///
    /// # Errors
    /// [`Error::Short`], [`Error::Field`] for flags that mean nothing.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; Self::BYTES] = head(bytes)?;
        let uuid = u128::from_be_bytes(array_at(bytes, 8));
        Ok(Self {
            number: u32_at(bytes, 0),
            spec: PoolSpec::from_flags(u32_at(bytes, 4), uuid)
                .map_err(|_| Error::Field("pool flags"))?,
            pages: u64_at(bytes, 24),
            identity: u128::from_le_bytes(array_at(bytes, 32)),
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.number.to_le_bytes());
        put(&mut bytes, 4, &self.spec.flags().to_le_bytes());
        put(&mut bytes, 8, &self.spec.uuid().unwrap_or(0).to_be_bytes());
        put(&mut bytes, 24, &self.pages.to_le_bytes());
        put(&mut bytes, 32, &self.identity.to_le_bytes());
        bytes
    }
}

/// Bytes of a client's counters.
pub const STATISTICS_BYTES: usize = 104;

/// A client's counters as bytes: the fields in the order of their declaration, 8 bytes each.
pub fn encode_statistics(statistics: &Statistics) -> [u8; STATISTICS_BYTES] {
    let fields = [
        statistics.puts,
        statistics.puts_stored,
        statistics.puts_refused_at_target,
        statistics.puts_refused_node_full,
        statistics.puts_refused_other,
        statistics.gets,
        statistics.hits,
        statistics.misses,
        statistics.flushed_pages,
        statistics.evicted_pages,
        statistics.used_pages,
        statistics.target_pages,
        statistics.reserved_pages,
    ];
    let mut bytes = [0; STATISTICS_BYTES];
    for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

/// Reads a client's counters.
///
/// # Errors
/// [`Error::Short`].
pub fn decode_statistics(bytes: &[u8]) -> Result<Statistics, Error> {
    let bytes: &[u8; STATISTICS_BYTES] = head(bytes)?;
    let field = |number: usize| u64_at(bytes, 8 * number);
    Ok(Statistics {
        puts: field(0),
        puts_stored: field(1),
        puts_refused_at_target: field(2),
        puts_refused_node_full: field(3),
        puts_refused_other: field(4),
        gets: field(5),
        hits: field(6),
        misses: field(7),
        flushed_pages: field(8),
        evicted_pages: field(9),
        used_pages: field(10),
        target_pages: field(11),
        reserved_pages: field(12),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::Direction;

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
    fn a_list_of_keys_is_cut_where_it_is_full() {
        let mut bytes = [0xff; 40];
        let mut list = KeyList::new(&mut bytes).unwrap();
        assert_eq!(KeyList::room(40), 2);
        assert!(
            list.push(Key::new(1, 2)) && list.push(Key::new(3, 4)) && !list.push(Key::new(5, 6))
        );
        assert_eq!(bytes[..8], [2, 0, 0, 0, 12, 0, 1, 0]);
        let keys: Result<Vec<Key>, Error> = KeyList::decode(&bytes).unwrap().collect();
        assert_eq!(keys, Ok(vec![Key::new(1, 2), Key::new(3, 4)]));
        bytes[0] = 3;
        assert!(KeyList::decode(&bytes).is_err());
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

    #[test]
    fn pools_and_counters_come_back() {
        let spec = PoolSpec::shared_ephemeral(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let bytes = CreatePool(spec).encode();
        assert_eq!(bytes[..12], [2, 0, 0, 1, 0, 0, 0, 0, 0x00, 0x11, 0x22, 0x33]);
        assert_eq!(CreatePool::decode(&bytes), Ok(CreatePool(spec)));
        let entry = PoolEntry { number: 7, spec, pages: 9, identity: 1 << 100 | 5 };
        assert_eq!(PoolEntry::decode(&entry.encode()), Ok(entry));
        let counters = Statistics { puts: 1, misses: 8, reserved_pages: 12, ..Default::default() };
        assert_eq!(decode_statistics(&encode_statistics(&counters)), Ok(counters));
        assert!(decode_statistics(&[0; 103]).is_err());
    }
}
