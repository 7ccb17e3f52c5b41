//! The format of the record in entry 0 of a key's object, and the places of its parts.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `SPKV` |
//! | 4 | 2 | format, 1 |
//! | 6 | 2 | 0: the value follows the key; 1: it lies in parts; 2: its parts are being put |
//! | 8 | 4 | bytes of the key |
//! | 12 | 4 | version of the parts, 1 to 2^26 - 2; else 0 |
//! | 16 | 8 | bytes of the value |
//! | 24 | 4 | bytes of each part except the last, whole pages; else 0 |
//! | 28 | 4 | 0 |
//! | 32 | | the key, then a value of kind 0 |
//!
//! Numbers are little-endian.

use spillway_client::{Key, PAGE_BYTES, VALUE_BYTES_MAX as PART_BYTES_MAX};
use twox_hash::XxHash3_64;

const MAGIC: [u8; 4] = *b"SPKV";
const FORMAT: u16 = 1;
const HEAD_BYTES: usize = 32;
/// Bits of an entry's index that number the part; the others are the version.
const PART_BITS: u32 = 6;
/// Most parts of a value.
pub const PARTS_MAX: usize = 1 << PART_BITS;
/// One more than the largest version.
pub const VERSIONS: u32 = (1 << (32 - PART_BITS)) - 1;
/// Shortest part, except the last of a value.
pub const PART_BYTES_MIN: usize = 256 << 10;
/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1 << 20;
/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = PARTS_MAX * PART_BYTES_MAX;

/// The object of a key's record and parts; never 0, which holds the pool's name.
pub fn object(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key).max(1)
}

/// The key of an object's record.
pub const fn record_key(object: u64) -> Key {
    Key::new(object, 0)
}

/// The stored form of a key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The whole key.
    pub key: &'a [u8],
    /// The value, or its location.
    pub body: Body<'a>,
}

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// In the record.
    Inline(&'a [u8]),
    /// In entries of their own.
    Parts(Parts),
    /// In these entries, but incomplete: it is being put, or the process that put it was killed.
    Pending(Parts),
}

/// The parts of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Distinguishes them from those of other puts of the key.
    pub version: u32,
    /// Bytes of each except the last.
    pub part_bytes: u32,
    /// Bytes of all together, not 0.
    pub length: u64,
}

/// The bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a record of a key: {0}")]
pub struct Malformed(&'static str);

impl Parts {
    /// The parts of a new value of `length` bytes.
    pub const fn new(length: usize, version: u32) -> Self {
        let each = length.div_ceil(PARTS_MAX).next_multiple_of(PAGE_BYTES);
        let part_bytes = if each < PART_BYTES_MIN { PART_BYTES_MIN } else { each };
        Self { version, part_bytes: part_bytes as u32, length: length as u64 }
    }

    /// Number of parts.
    pub const fn count(&self) -> usize {
        self.length.div_ceil(self.part_bytes as u64) as usize
    }

    /// The key of part `number`.
    pub const fn key(&self, object: u64, number: usize) -> Key {
        Key::new(object, self.version << PART_BITS | number as u32)
    }
}

impl<'a> Record<'a> {
    /// Whether a value lies in the record: it fits in a page with its key.
    pub const fn is_inline(key: &[u8], value: &[u8]) -> bool {
        HEAD_BYTES + key.len() + value.len() <= PAGE_BYTES
    }

    /// Whether it is the record of a value under `key`.
    pub fn is_of(&self, key: &[u8]) -> bool {
        self.key == key && !matches!(self.body, Body::Pending(_))
    }

    /// The entries that belong to the value besides the record.
    pub const fn parts(&self) -> Option<Parts> {
        match self.body {
            Body::Inline(_) => None,
            Body::Parts(parts) | Body::Pending(parts) => Some(parts),
        }
    }

    /// Appends the record to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, value, parts) = match self.body {
            Body::Inline(value) => (0_u16, value, Parts { version: 0, part_bytes: 0, length: 0 }),
            Body::Parts(parts) => (1, &[][..], parts),
            Body::Pending(parts) => (2, &[][..], parts),
        };
        let length = parts.length + value.len() as u64;
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend((self.key.len() as u32).to_le_bytes());
        bytes.extend(parts.version.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(parts.part_bytes.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.key);
        bytes.extend(value);
    }

    /// Decodes a record from all of `bytes`.
    ///
    /// # Errors
    /// Says what is invalid.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(Malformed("too short"))?;
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[..4] != MAGIC || half(4) != FORMAT || word(28) != 0 {
            return Err(Malformed("of another format"));
        }
        let length = u64::from(word(16)) | u64::from(word(20)) << 32;
        let (key, value) =
            rest.split_at_checked(word(8) as usize).ok_or(Malformed("its key is cut off"))?;
        let parts = Parts { version: word(12), part_bytes: word(24), length };
        let body = match half(6) {
            0 if parts.version != 0 || parts.part_bytes != 0 => {
                return Err(Malformed("a value of its own with parts"));
            }
            0 if value.len() as u64 != length => return Err(Malformed("its value is cut off")),
            0 => Body::Inline(value),
            1 | 2 if !value.is_empty() => return Err(Malformed("bytes after its key")),
            1 => Body::Parts(parts.check()?),
            2 => Body::Pending(parts.check()?),
            _ => return Err(Malformed("of another kind")),
        };
        Ok(Self { key, body })
    }
}

impl Parts {
    /// Returns itself if the parts are valid.
    fn check(self) -> Result<Self, Malformed> {
        let part_bytes = self.part_bytes as usize;
        if part_bytes == 0 || part_bytes > PART_BYTES_MAX || !part_bytes.is_multiple_of(PAGE_BYTES)
        {
            return Err(Malformed("parts of no possible length"));
        }
        if !(1..VERSIONS).contains(&self.version) {
            return Err(Malformed("an invalid version"));
        }
        if self.length == 0 || self.length > (PARTS_MAX * part_bytes) as u64 {
            return Err(Malformed("too many parts"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_part_is_at_least_256_kib_and_there_are_64_at_most() {
        for (length, part_bytes, count) in [
            (1, 256 << 10, 1),
            (256 << 10, 256 << 10, 1),
            ((256 << 10) + 1, 256 << 10, 2),
            (16 << 20, 256 << 10, 64),
            ((16 << 20) + 1, (256 << 10) + 4096, 64),
            (VALUE_BYTES_MAX, 16 << 20, 64),
        ] {
            let parts = Parts::new(length, 1);
            assert_eq!((parts.part_bytes as usize, parts.count()), (part_bytes, count), "{length}");
            assert!(parts.check().is_ok());
        }
    }

    #[test]
    fn no_part_lies_where_a_record_or_a_name_lies() {
        for version in [1, VERSIONS - 1] {
            for number in [0, PARTS_MAX - 1] {
                let index = Parts::new(1, version).key(7, number).index;
                assert!(index != 0 && index < u32::MAX);
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(key: Vec<u8>, value: Vec<u8>) {
            let record = Record { key: &key, body: Body::Inline(&value) };
            let bytes = encoded(&record);
            prop_assert_eq!(Record::decode(&bytes), Ok(record));
        }

        #[test]
        fn parts_are_decoded(key: Vec<u8>, length in 1..=VALUE_BYTES_MAX, version in 1..VERSIONS) {
            let parts = Parts::new(length, version);
            for body in [Body::Parts(parts), Body::Pending(parts)] {
                let record = Record { key: &key, body };
                let bytes = encoded(&record);
                prop_assert_eq!(Record::decode(&bytes), Ok(record));
            }
        }

        /// A decoded record encodes to the same bytes: each record has one encoding, and every byte is checked.
        #[test]
        fn a_changed_byte_is_seen_or_means_another_record(
            key: Vec<u8>, value: Vec<u8>, parts: bool, length in 1..=VALUE_BYTES_MAX, at: usize, to: u8,
        ) {
            let body = if parts { Body::Parts(Parts::new(length, 9)) } else { Body::Inline(&value) };
            let mut bytes = encoded(&Record { key: &key, body });
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(encoded(&record), bytes);
            }
        }

        #[test]
        fn garbage_is_no_record(bytes: Vec<u8>) {
            prop_assert!(Record::decode(&bytes).is_err());
        }
    }
}
