//! Seals pages, so that a holder can't read or change them.
//!
//! The cipher is AES-256-GCM under a key that is fresh for each device at each start. The nonce is
//! the page's version, a number that the device never uses twice. The page's number is associated
//! data. Tag and version stay here, so a holder can't forge a page, replay an older version or
//! substitute another page.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::page::Page;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// Tag and version of a page's newest seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Never used twice under one key. The first is 1.
    pub version: u64,
    /// The tag of GCM.
    pub tag: [u8; TAG_BYTES],
}

/// Seals and opens the pages of one device.
pub struct Cipher {
    key: LessSafeKey,
    versions: AtomicU64,
}

impl core::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Cipher")
    }
}

fn nonce(version: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher {
    /// A cipher under a fresh random key.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn fresh() -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("the key is as long as AES-256's");
        bytes.fill(0);
        Ok(Self { key: LessSafeKey::new(key), versions: AtomicU64::new(1) })
    }

    /// Seals a page in place, under a version of its own.
    pub fn seal(&self, number: u64, page: &mut Page) -> Seal {
        // 2^64 versions do not run out.
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let tag = self
            .key
            .seal_in_place_separate_tag(
                nonce(version),
                Aad::from(number.to_le_bytes()),
                &mut page.0,
            )
            .expect("a page is far below the longest message");
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        Seal { version, tag: bytes }
    }

    /// Opens a page in place. Returns false if it is not the page that was sealed; its bytes are
    /// then garbage.
    pub fn open(&self, number: u64, seal: &Seal, page: &mut Page) -> bool {
        let aad = Aad::from(number.to_le_bytes());
        let tag = Tag::from(seal.tag);
        self.key.open_in_place_separate_tag(nonce(seal.version), aad, tag, &mut page.0, 0..).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use spillway_types::PAGE_BYTES;

    use super::*;

    /// GCM's key stream depends on key and nonce alone, so equal pages look equal under equal nonces.
    #[test]
    fn no_two_seals_have_the_same_nonce() {
        const THREADS: u64 = 4;
        const SEALS: usize = 25_000;
        let cipher = Cipher::fresh().unwrap();
        let seal = |number| {
            let mut page = Page([0; PAGE_BYTES]);
            let seal = cipher.seal(number, &mut page);
            let begins: [u8; 32] = page.0[..32].try_into().unwrap();
            (seal.version, *nonce(seal.version).as_ref(), begins)
        };
        let seals: Vec<_> = thread::scope(|scope| {
            let one = |number| move || (0..SEALS).map(|_| seal(number)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(one(number))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let all = THREADS as usize * SEALS;
        assert_eq!(seals.iter().map(|seal| seal.0).collect::<HashSet<_>>().len(), all, "versions");
        assert_eq!(seals.iter().map(|seal| seal.1).collect::<HashSet<_>>().len(), all, "nonces");
        assert_eq!(seals.iter().map(|seal| seal.2).collect::<HashSet<_>>().len(), all, "pages");
    }

    #[test]
    fn every_bit_of_a_version_is_in_its_nonce() {
        let nonces: HashSet<_> = (0..64).map(|bit| *nonce(1 << bit).as_ref()).collect();
        assert_eq!(nonces.len(), 64);
        assert!(!nonces.contains(nonce(0).as_ref()));
    }

    #[test]
    fn a_page_opens_under_its_own_number_and_version_alone() {
        let cipher = Cipher::fresh().unwrap();
        let mut page = Page([7; PAGE_BYTES]);
        let seal = cipher.seal(3, &mut page);
        let again = cipher.seal(3, &mut Page([7; PAGE_BYTES]));
        assert_ne!((seal.version, seal.tag), (again.version, again.tag));
        assert_ne!(page.0, [7; PAGE_BYTES]);
        assert!(!cipher.open(4, &seal, &mut page.clone()), "another page");
        assert!(!cipher.open(3, &again, &mut page.clone()), "another version");
        let mut damaged = page.clone();
        damaged.0[4095] ^= 1;
        assert!(!cipher.open(3, &seal, &mut damaged));
        assert!(!Cipher::fresh().unwrap().open(3, &seal, &mut page.clone()), "another key");
        assert!(cipher.open(3, &seal, &mut page));
        assert_eq!(page.0, [7; PAGE_BYTES]);
    }
}
