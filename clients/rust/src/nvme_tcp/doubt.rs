//! Keys whose last write ended in an error.
//!
//! The target may hold their new value, their old one or none. So that no get ever finds the old
//! one, each is deleted on the next association before anything else is asked. That also frees
//! what a put stored whose answer got lost.
//!
//! Only keys of private pools are kept: in a shared pool another member may have written the key
//! since, and the delete would lose that.

use super::call::{Call, PoolRef};

/// Most writes that are remembered. A program that goes on writing while the target is away longer
/// than that loses the pool: better a clear error than an old value.
pub const DOUBTS_MAX: usize = 16_384;

/// The writes that failed, in the order in which they did.
#[derive(Debug)]
pub(super) struct Doubts {
    calls: Vec<Call>,
}

impl Doubts {
    /// An empty list with all its room: it grows when memory may be short.
    pub(super) fn new() -> Self {
        Self { calls: Vec::with_capacity(DOUBTS_MAX) }
    }

    /// Remembers that `write` failed. False when there is no room: the pool must not be used any
    /// more.
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

    /// The latest doubt is settled.
    pub(super) fn settle(&mut self) {
        self.calls.pop();
    }

    /// Forgets what is known of a pool that is gone.
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
