//! A leaf of the index, its name, and what the leaf of a root says.

use core::sync::atomic::{AtomicU64, Ordering};

use spillway_tiers::Zeroed;
use spillway_types::Key;

use super::{LEAF_SHIFT, ROOT_CHUNK};

/// Entries of 64 neighbouring indexes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Leaf {
    pub(super) object: u64,
    /// The slot of a leaf of order 0. A root: see [`Root`]. Of leaf 0, which is no leaf: how many
    /// there are, see [`Index::leaf_high`].
    pub(super) slot: AtomicU64,
    /// Its [`Head`].
    pub(super) head: AtomicU64,
    /// Index >> 6.
    pub(super) chunk: u32,
    /// Next leaf of the bucket, or of the free list.
    pub(super) next: u32,
}

// SAFETY: integers and atomics, for which zero is a value.
unsafe impl Zeroed for Leaf {}

const _: () = assert!(size_of::<Leaf>() == 32);

/// What changes together when a leaf is made, widened or removed, from the lowest bit: the first
/// slot of the run 32, the pool 16 (0: the leaf is free), the first index (low six bits) that the
/// run covers 6, log2 of the slots in the run 3, the slots in use and one more if the leaf is
/// kept 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head(pub(super) u64);

impl Head {
    pub(super) const FREE: Self = Self(0);

    pub(super) const fn new(pool: u16, base: u32, order: u32, run: u32, live: u32) -> Self {
        Self(
            run as u64
                | (pool as u64) << 32
                | (base as u64) << 48
                | (order as u64) << 54
                | (live as u64) << 57,
        )
    }

    pub(super) const fn run(self) -> u32 {
        self.0 as u32
    }

    pub(super) const fn pool(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(super) const fn base(self) -> u32 {
        (self.0 >> 48 & 0x3f) as u32
    }

    pub(super) const fn order(self) -> u32 {
        (self.0 >> 54 & 7) as u32
    }

    pub(super) const fn live(self) -> u32 {
        (self.0 >> 57) as u32
    }

    pub(super) const fn with_live(self, live: u32) -> Self {
        Self(self.0 & !(0x7f << 57) | (live as u64) << 57)
    }
}

impl Leaf {
    #[inline(always)]
    pub(super) fn head(&self) -> Head {
        Head(self.head.load(Ordering::Relaxed))
    }
}

/// The name of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafKey {
    pub(crate) object: u64,
    pub(crate) chunk: u32,
    pub(crate) pool: u16,
}

impl LeafKey {
    pub(crate) const fn of(pool: u16, key: Key) -> Self {
        Self { object: key.object, chunk: key.index >> LEAF_SHIFT, pool }
    }

    pub(crate) const fn root(pool: u16, object: u64) -> Self {
        Self { object, chunk: ROOT_CHUNK, pool }
    }

    /// Mixes the name with a secret; the high bits choose the shard, the low ones the bucket.
    /// (Folded multiplication, as in wyhash.)
    #[inline]
    pub(crate) const fn hash(self, seed: u64) -> u64 {
        let low = self.object ^ seed;
        let high = (self.chunk as u64 | (self.pool as u64) << 32) ^ 0x9e37_79b9_7f4a_7c15;
        let first = fold(low, 0xa076_1d64_78bd_642f ^ seed.rotate_left(32));
        fold(first ^ high, 0xe703_7ed1_a0b4_28db)
    }
}

const fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    (wide as u64) ^ (wide >> 64) as u64
}

/// An object with indexes beyond the first leaf has a root, which limits the search for them: the
/// number of such leaves, and the highest chunk ever used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) leaves: u32,
    pub(crate) chunk_max: u32,
}

impl Root {
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self { leaves: bits as u32, chunk_max: (bits >> 32) as u32 }
    }

    pub(super) const fn bits(self) -> u64 {
        self.leaves as u64 | (self.chunk_max as u64) << 32
    }
}
