//! Empty chunks that keep their memory for a while. A client that replaces values soon needs it again, and returning
//! memory to the kernel and getting it back zeroed takes several times as long as copying a value.

use super::{Arena, CHUNK_BYTES, NONE};
use crate::budget::Use;
use crate::sync::{Lock, Ordering};

/// Largest part of all memory that is kept.
const KEPT_PART: u64 = 8;
/// Most kept bytes.
const KEPT_BYTES_MAX: u64 = 128 << 20;

/// A stack of chunks that are in no lane. They are charged to the budget.
#[derive(Debug)]
pub(super) struct Warm(Lock<Chunks>);

#[derive(Debug)]
struct Chunks {
    first: u32,
    count: u64,
    /// The minimum since [`Arena::cool`]: this many were unused.
    idle: u64,
}

impl Warm {
    pub(super) fn new() -> Self {
        Self(Lock::new(Chunks { first: NONE, count: 0, idle: 0 }))
    }
}

impl Arena {
    /// Keeps a free chunk in no lane, or returns it to the host if there are enough.
    pub(super) fn retire(&self, chunk: u32) {
        let most = (self.budget.cap() / KEPT_PART).min(KEPT_BYTES_MAX) / CHUNK_BYTES as u64;
        let mut warm = self.warm.0.lock();
        if warm.count < most {
            self.chunk(chunk).next.store(warm.first, Ordering::Relaxed);
            warm.first = chunk;
            warm.count += 1;
            return;
        }
        drop(warm);
        self.give_back(chunk);
    }

    /// A chunk that was kept. It has its memory, with anything in it.
    pub(super) fn take_warm(&self) -> Option<u32> {
        let mut warm = self.warm.0.lock();
        let chunk = warm.first;
        if chunk == NONE {
            return None;
        }
        warm.first = self.chunk(chunk).next.load(Ordering::Relaxed);
        warm.count -= 1;
        warm.idle = warm.idle.min(warm.count);
        Some(chunk)
    }

    /// Bytes of chunks that are kept.
    pub(super) fn warm_bytes(&self) -> u64 {
        self.warm.0.lock().count * CHUNK_BYTES as u64
    }

    /// Bytes that can still be taken for `to`, including kept memory.
    pub fn left(&self, to: Use) -> u64 {
        self.budget.left(to) + self.warm_bytes()
    }

    /// Returns kept chunks that were unused since the last call to the host. Call it periodically.
    pub fn cool(&self) {
        let mut warm = self.warm.0.lock();
        let idle = warm.idle;
        warm.idle = warm.count - idle;
        drop(warm);
        self.give_warm_back(idle);
    }

    /// Returns up to `count` kept chunks to the host; returns their number.
    pub(super) fn give_warm_back(&self, count: u64) -> u64 {
        for done in 0..count {
            let Some(chunk) = self.take_warm() else { return done };
            self.give_back(chunk);
        }
        count
    }
}
