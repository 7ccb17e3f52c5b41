//! The table of pages: the seal of each page, or that it is not stored. It takes 24 bytes a page,
//! allocated up front.
//!
//! Entries are atomic words, so that sharing them needs no unsafe code. A thread reads an entry
//! under the page's lock, and writes it under the exclusive lock. The lock orders the accesses.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::seal::Seal;

/// The version of a page that is not stored.
const ABSENT: u64 = 0;
/// The version of a page whose last write failed in all places, or that all of them have lost.
const BROKEN: u64 = u64::MAX;

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// The page was never written, or was discarded. It reads as zeros.
    Absent,
    /// The page is stored under this seal.
    Sealed(Seal),
    /// The last write failed, and some places may have it; or no place has the page any more. Reads fail until the page is
    /// written again.
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

    pub fn get(&self, page: u64) -> PageState {
        let entry = &self.0[page as usize];
        match entry.version.load(Ordering::Relaxed) {
            ABSENT => PageState::Absent,
            BROKEN => PageState::Broken,
            version => {
                let mut tag = [0; 16];
                for (bytes, word) in tag.chunks_exact_mut(8).zip(&entry.tag) {
                    bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
                }
                PageState::Sealed(Seal { version, tag })
            }
        }
    }

    pub fn is_stored(&self, page: u64) -> bool {
        self.0[page as usize].version.load(Ordering::Relaxed) != ABSENT
    }

    /// Sets the state of a page, and returns the former one.
    pub fn set(&self, page: u64, known: PageState) -> PageState {
        let before = self.get(page);
        let entry = &self.0[page as usize];
        let version = match known {
            PageState::Absent => ABSENT,
            PageState::Broken => BROKEN,
            PageState::Sealed(seal) => {
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
