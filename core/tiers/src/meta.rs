//! Metadata of a frame or a cell.

use crate::region::Zeroed;
use crate::sync::{AtomicU16, AtomicU32, Ordering};

/// Most references to one frame or cell.
///
/// Far enough from the largest count that threads which all add at once cannot wrap it.
const REFERENCES_MAX: u16 = 50_000;
/// With so many references a frame is shared no further: the rest is for readers.
const SHARED_MAX: u16 = 40_000;

/// What is known about a frame or a cell, 16 bytes. The reference count is atomic; the other
/// fields are plain values behind the lock of the list or free list the frame is on.
#[derive(Debug)]
#[repr(C)]
pub struct Meta {
    references: AtomicU16,
    /// A coarse time of the last use.
    pub stamp: AtomicU16,
    /// The older neighbour on a list.
    pub prev: AtomicU32,
    /// The younger neighbour on a list.
    pub next: AtomicU32,
    /// The index entry that the list membership belongs to.
    pub back: AtomicU32,
}

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for Meta {}

impl Meta {
    /// Sets the count of an object that nobody else knows yet to one.
    pub(crate) fn first_reference(&self) {
        self.references.store(1, Ordering::Relaxed);
    }

    /// Starts anew, with `references`, whatever a process before this one left here.
    pub(crate) fn reset(&self, references: u16) {
        for link in [&self.prev, &self.next, &self.back] {
            link.store(0, Ordering::Relaxed);
        }
        self.stamp.store(0, Ordering::Relaxed);
        self.references.store(references, Ordering::Relaxed);
    }

    /// Adds a reference to an object that is known to have one. False when there are too many.
    #[inline]
    #[must_use]
    pub fn add_reference(&self) -> bool {
        if self.references.fetch_add(1, Ordering::Relaxed) < REFERENCES_MAX {
            return true;
        }
        self.references.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Adds an owner to an object that may be on its way out. False when it is, or has too many.
    #[must_use]
    pub fn share_if_live(&self) -> bool {
        self.references
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |count| {
                (count != 0 && count < SHARED_MAX).then(|| count + 1)
            })
            .is_ok()
    }

    /// Drops a reference; true when it was the last.
    #[inline]
    #[must_use]
    pub fn drop_reference(&self) -> bool {
        if self.references.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        // Whoever frees sees all that the other readers did.
        core::sync::atomic::fence(Ordering::Acquire);
        true
    }

    /// References now.
    pub fn references(&self) -> u16 {
        self.references.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_as_many_share_as_may_has_room_for_its_readers() {
        let zero = || AtomicU32::new(0);
        let (references, stamp) = (AtomicU16::new(1), AtomicU16::new(0));
        let meta = Meta { references, stamp, prev: zero(), next: zero(), back: zero() };
        let shared = (0..u32::from(u16::MAX)).take_while(|_| meta.share_if_live()).count();
        assert!(shared > 30_000, "{shared} share it");
        assert!((0..8000).all(|_| meta.add_reference()), "readers find no room");
        assert!(!meta.share_if_live());
        (0..shared + 8000).for_each(|_| assert!(!meta.drop_reference()));
        assert!(meta.drop_reference());
        assert!(!meta.share_if_live(), "it is on its way out");
    }
}
