//! What makes a value that leaves the host unreadable there, and tells whether it came back as it
//! was.
//!
//! A key (object and index) is used for one value only, ever, so it is both the page's id and its
//! version, and serves as the nonce of AES-256-GCM and as its associated data. An older value, the
//! value of another key or zeros don't pass.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use twox_hash::XxHash3_64;

use spillway_types::{Key, PAGE_BYTES};

/// Most bytes that sealing adds: a tag.
pub const TAG_BYTES: usize = 16;
/// Most bytes of a sealed value.
pub const SEALED_BYTES_MAX: usize = PAGE_BYTES + TAG_BYTES;
/// Bytes of a run's key.
pub const KEY_BYTES: usize = 32;

const SUM_BYTES: usize = 8;

/// How the values of a run are sealed.
pub enum Seal {
    /// Encrypted and authenticated with AES-256-GCM.
    Encrypted(Box<LessSafeKey>),
    /// In the clear, with an XXH3-64 checksum that knows the key. It tells damage, not malice.
    Clear {
        /// Of this run alone, so that a value of another run does not pass.
        seed: u64,
    },
}

impl core::fmt::Debug for Seal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Encrypted(_) => "Encrypted",
            Self::Clear { .. } => "Clear",
        })
    }
}

fn nonce(key: Key) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&key.object.to_le_bytes());
    bytes[8..].copy_from_slice(&key.index.to_le_bytes());
    bytes
}

fn checksum(seed: u64, key: Key, content: &[u8]) -> [u8; SUM_BYTES] {
    let mut named = [0; 20];
    named[..12].copy_from_slice(&nonce(key));
    named[12..].copy_from_slice(&seed.to_le_bytes());
    let seed = XxHash3_64::oneshot(&named);
    XxHash3_64::oneshot_with_seed(seed, content).to_le_bytes()
}

impl Seal {
    /// Sealing with a fresh key of the run.
    pub fn encrypted(key: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("the key is as long as AES-256's");
        Self::Encrypted(Box::new(LessSafeKey::new(key)))
    }

    /// Checksums of a run with this key.
    pub fn clear(key: &[u8; KEY_BYTES]) -> Self {
        Self::Clear { seed: XxHash3_64::oneshot(key) }
    }

    /// Bytes that sealing adds to a value.
    pub const fn added_bytes(&self) -> usize {
        match self {
            Self::Encrypted(_) => TAG_BYTES,
            Self::Clear { .. } => SUM_BYTES,
        }
    }

    /// Seals the first `length` bytes of `value` where they lie; the sealed length.
    ///
    /// Never to be called twice with one key.
    pub fn seal(&self, key: Key, value: &mut [u8; SEALED_BYTES_MAX], length: usize) -> usize {
        let (content, rest) = value.split_at_mut(length);
        match self {
            Self::Encrypted(cipher) => {
                let nonce_bytes = nonce(key);
                let tag = cipher
                    .seal_in_place_separate_tag(
                        Nonce::assume_unique_for_key(nonce_bytes),
                        Aad::from(nonce_bytes),
                        content,
                    )
                    .expect("a page is far below the longest message");
                rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
            }
            Self::Clear { seed } => {
                rest[..SUM_BYTES].copy_from_slice(&checksum(*seed, key, content));
            }
        }
        length + self.added_bytes()
    }

    /// Opens a sealed value where it lies. `None` when it is not what was sealed under this key.
    pub fn open<'a>(&self, key: Key, sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        match self {
            Self::Encrypted(cipher) => {
                let nonce_bytes = nonce(key);
                let nonce = Nonce::assume_unique_for_key(nonce_bytes);
                let opened = cipher.open_in_place(nonce, Aad::from(nonce_bytes), sealed);
                opened.ok().map(|content| &*content)
            }
            Self::Clear { seed } => {
                let (content, sum) = sealed.split_last_chunk::<SUM_BYTES>()?;
                (*sum == checksum(*seed, key, content)).then_some(content)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seals() -> [Seal; 2] {
        [Seal::encrypted(&[7; KEY_BYTES]), Seal::clear(&[7; KEY_BYTES])]
    }

    #[test]
    fn what_was_sealed_opens_under_its_own_key_alone() {
        for seal in seals() {
            for length in [1, 1500, PAGE_BYTES] {
                let mut value = [0x5a; SEALED_BYTES_MAX];
                let key = Key::new(1 << 40, 3);
                let sealed = seal.seal(key, &mut value, length);
                assert_eq!(sealed, length + seal.added_bytes());
                for other in [Key::new(1 << 40, 4), Key::new((1 << 40) + 1, 3)] {
                    assert_eq!(seal.open(other, &mut { value }[..sealed]), None);
                }
                let mut damaged = value;
                damaged[length / 2] ^= 1;
                assert_eq!(seal.open(key, &mut damaged[..sealed]), None);
                assert_eq!(seal.open(key, &mut { value }[..sealed - 1]), None);
                assert_eq!(seal.open(key, &mut [0; SEALED_BYTES_MAX][..sealed]), None);
                assert_eq!(
                    seal.open(key, &mut value[..sealed]),
                    Some(&[0x5a; PAGE_BYTES][..length])
                );
            }
        }
    }

    #[test]
    fn nothing_of_the_page_is_seen_and_equal_pages_differ() {
        let [seal, _] = seals();
        let (mut one, mut two) = ([0; SEALED_BYTES_MAX], [0; SEALED_BYTES_MAX]);
        seal.seal(Key::new(1, 1), &mut one, PAGE_BYTES);
        seal.seal(Key::new(1, 2), &mut two, PAGE_BYTES);
        assert_ne!(one, two);
        assert!(one.iter().filter(|&&byte| byte == 0).count() < 64);
        let other = Seal::encrypted(&[8; KEY_BYTES]);
        assert_eq!(other.open(Key::new(1, 1), &mut one), None);
    }
}
