//! Deleted values that are still in the store.

use crate::session::Extent;

/// Values to flush now, or when the child that saves has ended.
#[derive(Debug, Default)]
pub struct Discards {
    /// To flush now.
    due: Vec<Extent>,
    /// To flush when the child has ended.
    kept: Vec<Extent>,
    kept_bytes: u64,
    /// The child sees values with lower numbers: they existed at its fork. `None` when there is no child.
    child_sees_below: Option<u64>,
}

impl Discards {
    /// Adds a value that the server has deleted.
    pub fn add(&mut self, extent: Extent) {
        if self.child_sees_below.is_some_and(|below| extent.first < below) {
            self.kept.push(extent);
            self.kept_bytes += extent.bytes;
        } else {
            self.due.push(extent);
        }
    }

    /// Records that a child was forked, before the value `next` was put.
    pub fn child_born(&mut self, next: u64) {
        self.child_sees_below = Some(next);
    }

    /// Records that the child has ended.
    pub fn child_died(&mut self) {
        self.child_sees_below = None;
        self.kept_bytes = 0;
        self.due.append(&mut self.kept);
    }

    /// Takes at most `most` of the values to flush now.
    pub fn take(&mut self, most: usize) -> Vec<Extent> {
        let from = self.due.len().saturating_sub(most);
        let taken = self.due.split_off(from);
        if self.due.is_empty() {
            // Do not keep the capacity: deleting a million values would leave memory for a million.
            self.due = Vec::new();
        }
        taken
    }

    /// Puts back values that could not be flushed.
    pub fn put_back(&mut self, extents: Vec<Extent>) {
        self.due.extend(extents);
    }

    /// Forgets all values: the store has lost the pool.
    pub fn forget(&mut self) {
        (self.due, self.kept, self.kept_bytes) = (Vec::new(), Vec::new(), 0);
    }

    /// The number of values to flush now.
    pub fn due(&self) -> usize {
        self.due.len()
    }

    /// Bytes of values that the store keeps for the child.
    pub const fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn extent(first: u64) -> Extent {
        Extent { first, bytes: 10 }
    }

    #[test]
    fn what_the_child_sees_waits_for_its_end() {
        let mut discards = Discards::default();
        discards.add(extent(1));
        discards.child_born(5);
        discards.add(extent(4));
        discards.add(extent(5));
        assert_eq!((discards.due(), discards.kept_bytes()), (2, 10));
        assert_eq!(discards.take(9), [extent(1), extent(5)]);
        discards.add(extent(6));
        discards.child_died();
        assert_eq!((discards.take(9), discards.kept_bytes()), (vec![extent(6), extent(4)], 0));
        discards.add(extent(2));
        assert_eq!(discards.due(), 1);
    }

    #[test]
    fn what_was_not_flushed_is_taken_again() {
        let mut discards = Discards::default();
        (0..5).for_each(|first| discards.add(extent(first)));
        let taken = discards.take(2);
        assert_eq!((taken.len(), discards.due()), (2, 3));
        discards.put_back(taken);
        assert_eq!(discards.due(), 5);
        discards.forget();
        assert_eq!(discards.due(), 0);
    }
}
