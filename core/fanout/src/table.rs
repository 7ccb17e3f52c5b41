//! What is known of each page: its seal, or that it is not stored. 24 bytes a page, allocated up front.
//!
//! Entries are atomic words, so that sharing them needs no unsafe code. Who reads an entry has the page's lock, who
//! writes it has it alone; the lock orders them.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::seal::Seal;

/// The version of a page that is not stored.
const ABSENT: u64 = 0;
/// The version of a page of which a write failed in all its places.
const BROKEN: u64 = u64::MAX;

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Never written, or discarded: zeros.
    Absent,
    /// Stored under this seal.
    Sealed(Seal),
    /// The last write failed, and nobody knows where it did: reads fail until it is written again.
    Broken,
}

#[derive(Debug)]
struct Entry {
    version: AtomicU64,
    tag: [AtomicU64; 2],
}

/// The table of a device.
#[derive(Debug)]
pub struct Table(Box<[Entry]>);

impl Table {
    pub fn new(pages: u64) -> Self {
        let entry = |_| Entry { version: AtomicU64::new(ABSENT), tag: Default::default() };
        Self((0..pages).map(entry).collect())
    }

    pub fn get(&self, page: u64) -> Known {
        let entry = &self.0[page as usize];
        match entry.version.load(Ordering::Relaxed) {
            ABSENT => Known::Absent,
            BROKEN => Known::Broken,
            version => {
                let mut tag = [0; 16];
                for (bytes, word) in tag.chunks_exact_mut(8).zip(&entry.tag) {
                    bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
                }
                Known::Sealed(Seal { version, tag })
            }
        }
    }

    pub fn is_stored(&self, page: u64) -> bool {
        self.0[page as usize].version.load(Ordering::Relaxed) != ABSENT
    }

    /// Sets what is known; what was known before.
    pub fn set(&self, page: u64, known: Known) -> Known {
        let before = self.get(page);
        let entry = &self.0[page as usize];
        let version = match known {
            Known::Absent => ABSENT,
            Known::Broken => BROKEN,
            Known::Sealed(seal) => {
                for (bytes, word) in seal.tag.chunks_exact(8).zip(&entry.tag) {
                    let half = bytes.try_into().unwrap_or_default();
                    word.store(u64::from_le_bytes(half), Ordering::Relaxed);
                }
                seal.version
            }
        };
        entry.version.store(version, Ordering::Relaxed);
        before
    }
}
