//! Finds cells of equal content.
//!
//! A table of buckets by the XXH3-128 of a cell's content. Equal hashes are never trusted: the bytes are
//! compared before a cell is shared. An entry carries the sharing domain, because a client must not find
//! another client's value outside its domain. From the first cell on, the table has one entry, of 8 bytes,
//! for each page that memory has room for. If a bucket is full, a new entry replaces another, whose cell
//! can't be found from then on: that only costs memory.

use std::io;

use twox_hash::XxHash3_128;

use super::Cells;
use crate::arena::Arena;
use crate::budget::{Budget, Use};
use crate::region::GrowArray;
use crate::sync::{AtomicU64, Lock, Ordering};

/// Entries of a bucket: a cache line.
const BUCKET_ENTRIES: usize = 8;
/// Locks over which buckets are spread.
const STRIPES: usize = 16;
/// Fewest bytes of content in a cell that is looked for: a shorter cell is hardly longer than its entry here.
pub const SHARED_BYTES_MIN: usize = 256;
/// Where an entry has the length, and above it the domain. The cell's number plus one is below.
const LENGTH_SHIFT: u32 = 32;
const DOMAIN_SHIFT: u32 = 48;

/// The cells that can be shared.
#[derive(Debug)]
pub(crate) struct Shared {
    /// 0 is no cell. Guarded by the stripes.
    entries: GrowArray<AtomicU64>,
    buckets: usize,
    growth: Lock<()>,
    stripes: [Lock<()>; STRIPES],
    seed: u64,
}

/// What an entry says of a cell, without the cell's number.
fn kind(domain: u16, length: usize) -> u64 {
    u64::from(domain) << DOMAIN_SHIFT | (length as u64) << LENGTH_SHIFT
}

/// The number of an entry's cell.
const fn cell_of(entry: u64) -> Option<u32> {
    (entry as u32).checked_sub(1)
}

impl Shared {
    pub(crate) fn open(frames_max: usize) -> io::Result<Self> {
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let buckets = frames_max.div_ceil(BUCKET_ENTRIES).max(1);
        Ok(Self {
            entries: GrowArray::reserve(buckets * BUCKET_ENTRIES)?,
            buckets,
            growth: Lock::new(()),
            stripes: core::array::from_fn(|_| Lock::new(())),
            seed: u64::from_ne_bytes(seed),
        })
    }

    /// The bucket of some content; `None` for one that is too short to be looked for.
    pub(crate) fn bucket(&self, content: &[u8]) -> Option<usize> {
        if content.len() < SHARED_BYTES_MIN {
            return None;
        }
        let hash = XxHash3_128::oneshot_with_seed(self.seed, content);
        Some((hash % self.buckets as u128) as usize)
    }

    /// The entries of a bucket; none before the table is there.
    fn entries_of(&self, bucket: usize) -> impl Iterator<Item = &AtomicU64> {
        let first = (bucket * BUCKET_ENTRIES).min(self.entries.len());
        (first..(first + BUCKET_ENTRIES).min(self.entries.len())).map(|at| self.entries.get(at))
    }

    /// Makes the table, if it is not there. False without memory for it.
    fn make(&self, budget: &Budget) -> bool {
        let all = self.buckets * BUCKET_ENTRIES;
        if self.entries.len() >= all {
            return true;
        }
        let _growth = self.growth.lock();
        self.entries.grow(all, budget, Use::Index)
    }

    /// A reference to a cell of the same domain and content, which is not `except`.
    pub(crate) fn find(
        &self,
        (cells, arena): (&Cells, &Arena),
        bucket: usize,
        domain: u16,
        content: &[u8],
        except: Option<u32>,
    ) -> Option<u32> {
        let mut candidates = [0; BUCKET_ENTRIES];
        let mut count = 0;
        let wanted = kind(domain, content.len());
        let stripe = self.stripes[bucket % STRIPES].lock();
        for entry in self.entries_of(bucket) {
            let entry = entry.load(Ordering::Relaxed);
            let Some(cell) = cell_of(entry) else { continue };
            if entry >> LENGTH_SHIFT != wanted >> LENGTH_SHIFT || Some(cell) == except {
                continue;
            }
            // Who frees a cell takes it out of here first, so this is a cell still.
            if cells.meta(arena, cell).share_if_live() {
                candidates[count] = cell;
                count += 1;
            }
        }
        drop(stripe);
        let mut found = None;
        for &cell in &candidates[..count] {
            if found.is_none() && &cells.content(arena, cell)[..content.len()] == content {
                found = Some(cell);
            } else {
                cells.release(arena, cell, content.len());
            }
        }
        found
    }

    /// Lets others find a cell, if they don't already. Without memory for that, they do not.
    pub(crate) fn insert(
        &self,
        budget: &Budget,
        bucket: usize,
        domain: u16,
        (cell, length): (u32, usize),
    ) {
        if !self.make(budget) {
            return;
        }
        let new = kind(domain, length) | (u64::from(cell) + 1);
        let _stripe = self.stripes[bucket % STRIPES].lock();
        let mut free = None;
        for entry in self.entries_of(bucket) {
            match cell_of(entry.load(Ordering::Relaxed)) {
                None => free = free.or(Some(entry)),
                Some(known) if known == cell => return,
                Some(_) => {}
            }
        }
        let victim = bucket * BUCKET_ENTRIES + cell as usize % BUCKET_ENTRIES;
        free.unwrap_or_else(|| self.entries.get(victim)).store(new, Ordering::Relaxed);
    }

    /// Forgets a cell that nobody refers to any more, if it is known.
    pub(crate) fn remove(&self, cell: u32, content: &[u8]) {
        let Some(bucket) = self.bucket(content) else { return };
        let _stripe = self.stripes[bucket % STRIPES].lock();
        for entry in self.entries_of(bucket) {
            if cell_of(entry.load(Ordering::Relaxed)) == Some(cell) {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }
}
