//! Keys whose last write ended in an error.
//!
//! The target may hold their new value, their old one or none. To make sure that no get finds the old one, the next
//! association deletes each of these keys before any other call. This also frees the value of a put whose answer was
//! lost.
//!
//! Only keys of private pools are recorded: in a shared pool another member may have written the key since, and the
//! delete would remove that value.

use super::call::{Call, PoolRef};

/// Most failed writes that are recorded. If more fail while the target is away, the pool is lost: a clear error is
/// better than an old value.
pub const DOUBTS_MAX: usize = 16_384;

/// The failed writes, in the order in which they failed.
#[derive(Debug)]
pub(super) struct Doubts {
    calls: Vec<Call>,
}

impl Doubts {
    /// An empty list with its full capacity: it fills when memory may be short.
    pub(super) fn new() -> Self {
        Self { calls: Vec::with_capacity(DOUBTS_MAX) }
    }

    /// Records that `write` failed. Returns false when there is no room: then the pool must not be used any more.
    #[must_use]
    pub(super) fn add(&mut self, write: &Call) -> bool {
        let mend = match *write {
            Call::Store(pool, key, _) | Call::Delete(pool, key) => Call::Delete(pool, key),
            Call::FlushObject(pool, object) => Call::FlushObject(pool, object),
            _ => return true,
        };
        // One delete settles every failed write of a key.
        if self.calls.contains(&mend) {
            return true;
        }
        let room = self.calls.len() < DOUBTS_MAX;
        if room {
            self.calls.push(mend);
        }
        room
    }

    /// The call that settles the latest doubt.
    pub(super) fn last(&self) -> Option<Call> {
        self.calls.last().copied()
    }

    /// Records that the latest doubt is settled.
    pub(super) fn settle(&mut self) {
        self.calls.pop();
    }

    /// Forgets the doubts of a pool that is gone.
    pub(super) fn forget(&mut self, pool: PoolRef) {
        self.calls.retain(|call| call.pool() != Some(pool));
    }
}

#[cfg(test)]
mod tests {
    use spillway_types::Key;

    use super::*;

    const POOL: PoolRef = PoolRef { place: 0, serial: 1 };

    #[test]
    fn a_failed_put_is_settled_by_a_delete() {
        let mut doubts = Doubts::new();
        assert!(doubts.add(&Call::Store(POOL, Key::new(1, 2), 4096)));
        assert_eq!(doubts.last(), Some(Call::Delete(POOL, Key::new(1, 2))));
        doubts.settle();
        assert_eq!(doubts.last(), None);
    }

    #[test]
    fn writes_of_the_same_keys_that_fail_again_take_no_more_room() {
        let mut doubts = Doubts::new();
        for index in (0..DOUBTS_MAX as u32).chain(0..DOUBTS_MAX as u32) {
            assert!(doubts.add(&Call::Store(POOL, Key::new(1, index % 100), 4096)));
        }
        for _ in 0..100 {
            assert!(doubts.last().is_some());
            doubts.settle();
        }
        assert_eq!(doubts.last(), None);
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let mut doubts = Doubts::new();
        for index in 0..DOUBTS_MAX as u32 {
            assert!(doubts.add(&Call::Delete(POOL, Key::new(1, index))));
        }
        assert!(!doubts.add(&Call::Delete(POOL, Key::new(2, 0))));
        doubts.forget(POOL);
        assert_eq!(doubts.last(), None);
    }
}
