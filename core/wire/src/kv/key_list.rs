//! Lists of keys.

use spillway_types::Key;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_ref};

use super::KEY_BYTES;
use crate::Error;
use crate::bytes::{prefix, put};

/// Bytes of the number of keys.
const HEADER_BYTES: usize = size_of::<U32>();
const ENTRY_BYTES: usize = size_of::<KeyDataStructure>();

/// Key data structure of a key of 12 bytes (Key Value Command Set 1.0, section 3.2.2, figure 16).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct KeyDataStructure {
    /// Key length (KL), bytes.
    pub key_length: U16,
    /// The key's first 8 bytes: its object.
    pub object: U64,
    /// The key's last 4 bytes: its index.
    pub index: U32,
    /// Padding to a multiple of 4 bytes.
    pub padding: [u8; 2],
}

const _: () = assert!(size_of::<KeyDataStructure>() == 16);

/// A list of keys, the data of List: the number of keys, then a [`KeyDataStructure`] of each (Key Value Command
/// Set 1.0, section 3.2.2, figure 15).
#[derive(Debug)]
pub struct KeyList<'a> {
    bytes: &'a mut [u8],
    used: usize,
    keys: u32,
}

impl<'a> KeyList<'a> {
    /// An empty list in `bytes`, at least 4 bytes.
    ///
    /// # Errors
    /// [`Error::Short`].
    pub fn new(bytes: &'a mut [u8]) -> Result<Self, Error> {
        if bytes.len() < HEADER_BYTES {
            return Err(Error::Short { need: HEADER_BYTES, got: bytes.len() });
        }
        bytes.fill(0);
        Ok(Self { bytes, used: HEADER_BYTES, keys: 0 })
    }

    /// The length of a list of `keys` keys, bytes.
    pub const fn bytes(keys: usize) -> usize {
        HEADER_BYTES + keys * ENTRY_BYTES
    }

    /// The number of keys that fit into `bytes` bytes.
    pub const fn room(bytes: usize) -> usize {
        bytes.saturating_sub(HEADER_BYTES) / ENTRY_BYTES
    }

    /// Adds a key. False if there is no room.
    pub fn push(&mut self, key: Key) -> bool {
        let Some(entry) = self.bytes.get_mut(self.used..self.used + ENTRY_BYTES) else {
            return false;
        };
        let structure = KeyDataStructure {
            key_length: u16::from(KEY_BYTES).into(),
            object: key.object.into(),
            index: key.index.into(),
            padding: [0; _],
        };
        put(entry, 0, structure.as_bytes());
        self.used += ENTRY_BYTES;
        self.keys += 1;
        put(self.bytes, 0, U32::new(self.keys).as_bytes());
        true
    }

    /// Decodes the keys of a list.
    ///
    /// # Errors
    /// [`Error::Short`] if there are fewer bytes than the number of keys needs, [`Error::Field`] for a key of
    /// another length.
    pub fn decode(bytes: &[u8]) -> Result<impl Iterator<Item = Result<Key, Error>>, Error> {
        let count: &U32 = prefix(bytes)?;
        let need = (count.get() as usize).saturating_mul(ENTRY_BYTES);
        let entries = &bytes[HEADER_BYTES..];
        let short = Error::Short { need, got: entries.len() };
        let (entries, _) = entries.get(..need).ok_or(short)?.as_chunks();
        Ok(entries.iter().map(|entry: &[u8; ENTRY_BYTES]| {
            let structure: &KeyDataStructure = transmute_ref!(entry);
            if structure.key_length != u16::from(KEY_BYTES) {
                return Err(Error::Field("key length"));
            }
            Ok(Key::new(structure.object.get(), structure.index.get()))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_key_is_laid_out_as_figure_16_says() {
        let mut bytes = [0xff; 20];
        let mut list = KeyList::new(&mut bytes).unwrap();
        assert!(list.push(Key::new(0x0807_0605_0403_0201, 0x0c0b_0a09)));
        let expected = [1, 0, 0, 0, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0];
        assert_eq!(bytes, expected);
    }
}
