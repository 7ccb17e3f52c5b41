//! Empty chunks that keep their memory for a while: whoever replaces values soon wants it again, and to have the kernel take
//! memory back and hand it out anew, cleared, takes several times as long as to copy a value into it.

use super::{Arena, CHUNK_BYTES, NONE};
use crate::budget::Use;
use crate::sync::{Lock, Ordering};

/// The part of all memory that is kept so at most.
const KEPT_PART: u64 = 16;
/// The most that is kept so, bytes.
const KEPT_BYTES_MAX: u64 = 128 << 20;

/// A stack of chunks that are in no lane. They are charged to the budget.
#[derive(Debug)]
pub(super) struct Warm(Lock<Chunks>);

#[derive(Debug)]
struct Chunks {
    first: u32,
    count: u64,
    /// The fewest that there were since [`Arena::cool`]: so many nobody has wanted.
    idle: u64,
}

impl Warm {
    pub(super) fn new() -> Self {
        Self(Lock::new(Chunks { first: NONE, count: 0, idle: 0 }))
    }
}

impl Arena {
    /// Keeps a chunk that is in no lane, and all free; or gives it back to the host when there are enough.
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

    /// What can still be taken for `to`, with what is kept, bytes.
    pub fn left(&self, to: Use) -> u64 {
        self.budget.left(to) + self.warm_bytes()
    }

    /// Gives those kept chunks back to the host that nobody has wanted since the last call. To be called now and then.
    pub fn cool(&self) {
        let mut warm = self.warm.0.lock();
        let idle = warm.idle;
        warm.idle = warm.count - idle;
        drop(warm);
        self.give_warm_back(idle);
    }

    /// Gives up to `count` kept chunks back to the host; how many there were.
    pub(super) fn give_warm_back(&self, count: u64) -> u64 {
        for done in 0..count {
            let Some(chunk) = self.take_warm() else { return done };
            self.give_back(chunk);
        }
        count
    }
}
