//! Seals values that leave the host, so that they are unreadable there and changes are detected.
//!
//! A key (object and index) is used for one value only, ever, so it is both the page's id and its
//! version, and serves as the nonce of AES-256-GCM and as its associated data. Older values, values
//! of other keys, and zeros fail authentication.
//!
//! Values that are to share memory on a blade must be equal when they are sealed, so there a value's own
//! content takes the place of its key: a keyed hash of it, its *name*, gives the AES key of this content
//! alone, and travels with it. The holder of the values sees which are equal, and may return any value of
//! the domain for any other. In the clear, a checksum of the content that the domain's key seeds travels
//! with it.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use twox_hash::XxHash3_64;

use spillway_types::{Key, PAGE_BYTES};

/// Bytes of the tag of an encrypted value.
const TAG_BYTES: usize = 16;
/// Bytes of a content's name: two of 2^48 pages have the same by a chance of 2^-33.
const NAME_BYTES: usize = 16;
/// Most bytes of a sealed value.
pub const SEALED_BYTES_MAX: usize = PAGE_BYTES + TAG_BYTES + NAME_BYTES;
/// Bytes of a whole page that [`Seal::Encrypted`] has sealed.
pub const SEALED_PAGE_BYTES: usize = PAGE_BYTES + TAG_BYTES;
/// Bytes of the key of a run, or of a sharing domain.
pub const KEY_BYTES: usize = 32;

const SUM_BYTES: usize = 8;

/// How the values of a run are sealed.
pub enum Seal {
    /// Encrypted and authenticated with AES-256-GCM.
    Encrypted(Box<LessSafeKey>),
    /// The same with a key that follows from the content, so that equal values are equal when sealed.
    Shared(Box<Domain>),
    /// In the clear, with an XXH3-64 checksum that includes the key. It detects damage, not
    /// attacks.
    Clear {
        /// Of this run alone, so that a value of another run does not pass.
        seed: u64,
    },
    /// In the clear, with an XXH3-64 checksum of the content alone, so that equal values are equal when
    /// sealed. It detects damage, not attacks.
    SharedClear {
        /// Of this domain alone, so that a value of another domain does not pass.
        seed: u64,
    },
}

/// What all who share values of a domain know.
pub struct Domain {
    /// Gives contents their names.
    names: hmac::Key,
    /// Gives names their AES keys.
    keys: hmac::Key,
}

impl Domain {
    fn new(key: &[u8; KEY_BYTES]) -> Self {
        let hashed = |purpose| hmac::Key::new(hmac::HMAC_SHA256, derived(key, purpose).as_ref());
        Self { names: hashed(b"spillway shared names"), keys: hashed(b"spillway shared keys") }
    }

    fn name(&self, content: &[u8]) -> [u8; NAME_BYTES] {
        let hash = hmac::sign(&self.names, content);
        let name = hash.as_ref().first_chunk();
        *name.expect("the hash is longer than a name")
    }

    /// The key of the one content that has this name.
    fn cipher(&self, name: [u8; NAME_BYTES]) -> LessSafeKey {
        let key = UnboundKey::new(&AES_256_GCM, hmac::sign(&self.keys, &name).as_ref());
        LessSafeKey::new(key.expect("the hash is as long as AES-256's key"))
    }
}

/// A secret of the domain with this key, for one purpose. It tells nothing about the key.
fn derived(key: &[u8; KEY_BYTES], purpose: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), purpose)
}

impl core::fmt::Debug for Seal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Encrypted(_) => "Encrypted",
            Self::Shared(_) => "Shared",
            Self::Clear { .. } => "Clear",
            Self::SharedClear { .. } => "SharedClear",
        })
    }
}

fn nonce(key: Key) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&key.object.to_le_bytes());
    bytes[8..].copy_from_slice(&key.index.to_le_bytes());
    bytes
}

/// For a key that seals one content only.
fn only_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn checksum(seed: u64, key: Key, content: &[u8]) -> [u8; SUM_BYTES] {
    let mut named = [0; 20];
    named[..12].copy_from_slice(&nonce(key));
    named[12..].copy_from_slice(&seed.to_le_bytes());
    let seed = XxHash3_64::oneshot(&named);
    checksum_of_content(seed, content)
}

fn checksum_of_content(seed: u64, content: &[u8]) -> [u8; SUM_BYTES] {
    XxHash3_64::oneshot_with_seed(seed, content).to_le_bytes()
}

impl Seal {
    /// Sealing with a fresh key of the run.
    pub fn encrypted(key: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("the key is as long as AES-256's");
        Self::Encrypted(Box::new(LessSafeKey::new(key)))
    }

    /// Sealing with the key of a sharing domain.
    pub fn shared(key: &[u8; KEY_BYTES]) -> Self {
        Self::Shared(Box::new(Domain::new(key)))
    }

    /// Checksums of a run with this key.
    pub fn clear(key: &[u8; KEY_BYTES]) -> Self {
        Self::Clear { seed: XxHash3_64::oneshot(key) }
    }

    /// Checksums of a sharing domain with this key.
    pub fn shared_clear(key: &[u8; KEY_BYTES]) -> Self {
        // Whoever reads the values may find the seed, and must not learn of the key by that.
        let secret = derived(key, b"spillway shared checksums");
        let seed = *secret.as_ref().first_chunk().expect("the hash is longer than a seed");
        Self::SharedClear { seed: u64::from_le_bytes(seed) }
    }

    /// What a run's settings ask for: with `share` the key is that of a sharing domain.
    pub fn of(encrypt: bool, share: bool, key: &[u8; KEY_BYTES]) -> Self {
        match (encrypt, share) {
            // Never `encrypted`: the nonces of runs with one key would repeat.
            (true, true) => Self::shared(key),
            (false, true) => Self::shared_clear(key),
            (true, false) => Self::encrypted(key),
            (false, false) => Self::clear(key),
        }
    }

    /// Bytes that sealing adds to a value.
    pub const fn added_bytes(&self) -> usize {
        match self {
            Self::Encrypted(_) => TAG_BYTES,
            Self::Shared(_) => TAG_BYTES + NAME_BYTES,
            Self::Clear { .. } | Self::SharedClear { .. } => SUM_BYTES,
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
            Self::Shared(domain) => {
                let name = domain.name(content);
                let tag = domain
                    .cipher(name)
                    .seal_in_place_separate_tag(only_nonce(), Aad::empty(), content)
                    .expect("a page is far below the longest message");
                rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
                rest[TAG_BYTES..TAG_BYTES + NAME_BYTES].copy_from_slice(&name);
            }
            Self::Clear { seed } => {
                rest[..SUM_BYTES].copy_from_slice(&checksum(*seed, key, content));
            }
            Self::SharedClear { seed } => {
                rest[..SUM_BYTES].copy_from_slice(&checksum_of_content(*seed, content));
            }
        }
        length + self.added_bytes()
    }

    /// Opens a sealed value where it lies. `None` when it is not what was sealed under this key, or, of a
    /// sharing domain, in this domain.
    pub fn open<'a>(&self, key: Key, sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        match self {
            Self::Encrypted(cipher) => {
                let nonce_bytes = nonce(key);
                let nonce = Nonce::assume_unique_for_key(nonce_bytes);
                let opened = cipher.open_in_place(nonce, Aad::from(nonce_bytes), sealed);
                opened.ok().map(|content| &*content)
            }
            Self::Shared(domain) => {
                let (encrypted, name) = sealed.split_last_chunk_mut::<NAME_BYTES>()?;
                let cipher = domain.cipher(*name);
                let opened = cipher.open_in_place(only_nonce(), Aad::empty(), encrypted);
                opened.ok().map(|content| &*content)
            }
            Self::Clear { seed } => {
                let (content, sum) = sealed.split_last_chunk::<SUM_BYTES>()?;
                (*sum == checksum(*seed, key, content)).then_some(content)
            }
            Self::SharedClear { seed } => {
                let (content, sum) = sealed.split_last_chunk::<SUM_BYTES>()?;
                (*sum == checksum_of_content(*seed, content)).then_some(content)
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
                // The third has the same exclusive or of object and index.
                let others = [(1 << 40, 4), ((1 << 40) + 1, 3), ((1 << 40) ^ 7, 4)];
                for other in others.map(|(object, index)| Key::new(object, index)) {
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
    fn equal_values_of_a_domain_are_equal_when_sealed_and_open_under_any_key_of_it() {
        let seals = |of: fn(&[u8; KEY_BYTES]) -> Seal| (of(&[7; KEY_BYTES]), of(&[8; KEY_BYTES]));
        for (one, other) in [seals(Seal::shared), seals(Seal::shared_clear)] {
            for length in [1, 1500, PAGE_BYTES] {
                equal_values_of_a_domain(&one, &other, length);
            }
        }
    }

    fn equal_values_of_a_domain(one: &Seal, other: &Seal, length: usize) {
        let sealed = |seal: &Seal, key: Key, byte| {
            // What another value has left behind it is none of it.
            let mut value = [key.index as u8; SEALED_BYTES_MAX];
            value[..length].fill(byte);
            let sealed = seal.seal(key, &mut value, length);
            assert_eq!(sealed, length + seal.added_bytes());
            value[..sealed].to_vec()
        };
        let first = sealed(one, Key::new(1, 1), 0x5a);
        assert_eq!(sealed(one, Key::new(2, 7), 0x5a), first);
        assert_ne!(sealed(one, Key::new(1, 1), 0x5b), first);
        assert_ne!(sealed(other, Key::new(1, 1), 0x5a), first);
        let content = Some(&[0x5a; PAGE_BYTES][..length]);
        assert_eq!(one.open(Key::new(9, 9), &mut first.clone()), content);
        assert_eq!(other.open(Key::new(1, 1), &mut first.clone()), None);
        for damaged in 0..first.len() {
            let mut value = first.clone();
            value[damaged] ^= 1;
            assert_eq!(one.open(Key::new(1, 1), &mut value), None, "{damaged} of {length}");
        }
        for short in [0, one.added_bytes() - 1, one.added_bytes(), first.len() - 1] {
            assert_eq!(one.open(Key::new(1, 1), &mut first.clone()[..short]), None);
        }
    }

    #[test]
    fn a_domain_s_key_seals_in_no_other_way() {
        let kind = |encrypt, share| format!("{:?}", Seal::of(encrypt, share, &[7; KEY_BYTES]));
        assert_eq!([kind(true, true), kind(false, true)], ["Shared", "SharedClear"]);
        assert_eq!([kind(true, false), kind(false, false)], ["Encrypted", "Clear"]);
    }

    #[test]
    fn what_a_domain_seals_is_the_same_in_every_build() {
        // Else runs of two builds would share nothing.
        let added = |seal: Seal| {
            let mut value = [0x5a; SEALED_BYTES_MAX];
            let sealed = seal.seal(Key::new(1, 1), &mut value, 100);
            value[100..sealed].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(
            added(Seal::shared(&[7; KEY_BYTES])),
            "cf729c2d315d697fd6209cf480dc97852a202ece7fbdd133209820e6c3c62009"
        );
        assert_eq!(added(Seal::shared_clear(&[7; KEY_BYTES])), "58092135e1f6bf4e");
    }

    #[test]
    fn a_content_s_name_can_be_made_with_the_domain_s_key_alone() {
        let name = |byte: u8| {
            let mut value = [0x5a; SEALED_BYTES_MAX];
            let sealed = Seal::shared(&[byte; KEY_BYTES]).seal(Key::new(1, 1), &mut value, 100);
            *value[..sealed].last_chunk::<NAME_BYTES>().unwrap()
        };
        assert_ne!(name(7), name(8));
    }

    #[test]
    fn nothing_of_a_shared_page_is_seen_and_each_content_has_a_key_of_its_own() {
        let seal = Seal::shared(&[7; KEY_BYTES]);
        let (mut one, mut two) = ([0; SEALED_BYTES_MAX], [0; SEALED_BYTES_MAX]);
        two[PAGE_BYTES - 1] = 1;
        seal.seal(Key::new(1, 1), &mut one, PAGE_BYTES);
        seal.seal(Key::new(1, 1), &mut two, PAGE_BYTES);
        assert!(one.iter().filter(|&&byte| byte == 0).count() < 64);
        // Under one key and nonce the pages would be equal up to the last byte.
        let equal = one.iter().zip(&two).filter(|(one, two)| one == two).count();
        assert!(equal < 64, "{equal} bytes are equal");
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
