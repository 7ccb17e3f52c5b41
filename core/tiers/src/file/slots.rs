//! Which slots of a file are in use, and the checksum of each.

use std::io;

use twox_hash::XxHash3_64;

use crate::budget::{Budget, Use};
use crate::region::GrowArray;
use spillway_types::PAGE_BYTES;

/// Slots of a word of the map of used slots, which is also what is punched out at once.
pub(super) const GROUP_SLOTS: usize = u64::BITS as usize;

/// A checksum that also knows the place, so that a page from another slot is not taken for this.
pub(super) fn checksum(page: &[u8; PAGE_BYTES], slot: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(slot, page)
}

/// The slots of one file.
#[derive(Debug)]
pub(super) struct Slots {
    /// Bits of used slots.
    used: GrowArray<u64>,
    sums: GrowArray<u64>,
    /// Words of `used` that mean something.
    groups: usize,
    /// Where the search for free slots begins.
    next_group: usize,
    /// Length of the row that was taken last.
    last_row: usize,
}

impl Slots {
    /// Room for about `most` slots, none of them used.
    pub(super) fn reserve(most: usize) -> io::Result<Self> {
        let groups = most.div_ceil(GROUP_SLOTS);
        Self::with_sums(GrowArray::reserve(groups * GROUP_SLOTS)?)
    }

    /// The same with checksums in memory that is there: as many slots as it has room for.
    pub(super) fn with_sums(sums: GrowArray<u64>) -> io::Result<Self> {
        let used = GrowArray::reserve(sums.room() / GROUP_SLOTS)?;
        Ok(Self { used, sums, groups: 0, next_group: 0, last_row: GROUP_SLOTS })
    }

    /// Forgets all slots, for another file.
    pub(super) fn clear(&mut self) {
        self.groups = 0;
        self.next_group = 0;
    }

    /// Slots in the groups that were ever used.
    pub(super) const fn high(&self) -> usize {
        self.groups * GROUP_SLOTS
    }

    /// Marks `count` slots in a row, no more than a group has, as used. Gives the first.
    pub(super) fn take(&mut self, count: usize, budget: &Budget) -> Option<usize> {
        if let Some(first) = self.take_row(self.next_group..self.groups, count) {
            // Single slots fill the gaps that rows leave.
            self.next_group = if count == 1 { first / GROUP_SLOTS } else { self.next_group };
            return Some(first);
        }
        let group = self.groups;
        let grown = self.used.grow(group + 1, budget, Use::Files)
            && self.sums.grow((group + 1) * GROUP_SLOTS, budget, Use::Files);
        grown.then(|| self.begin_group(count))
    }

    /// Marks `count` slots as used, in rows as long as there are. Gives the first of each row and
    /// how many it has.
    ///
    /// A store that goes on after another may have taken memory beyond the budget: pages must leave
    /// it before it is within, so memory for checksums is taken in any case.
    pub(super) fn take_rows(
        &mut self,
        count: usize,
        budget: &Budget,
    ) -> Option<Vec<(usize, usize)>> {
        let (mut rows, mut left) = (Vec::new(), count);
        // Longer rows than were found last are seldom there.
        let mut row = self.last_row.saturating_mul(2).clamp(1, GROUP_SLOTS);
        while left > 0 {
            row = row.min(left);
            let first = self
                .take_row(self.next_group..self.groups, row)
                .or_else(|| self.take_row(0..self.next_group, row))
                .or_else(|| self.grow_in_any_case(row, budget));
            if let Some(first) = first {
                self.next_group = first / GROUP_SLOTS;
                self.last_row = row;
                rows.push((first, row));
                left -= row;
            } else if row == 1 {
                for (first, row) in rows {
                    (first..first + row).for_each(|slot| self.clear_bit(slot));
                }
                return None;
            } else {
                row /= 2;
            }
        }
        Some(rows)
    }

    fn grow_in_any_case(&mut self, count: usize, budget: &Budget) -> Option<usize> {
        let group = self.groups;
        let grown = self.used.restore(group + 1, budget)
            && self.sums.restore((group + 1) * GROUP_SLOTS, budget);
        grown.then(|| {
            // There are whole groups again.
            self.last_row = GROUP_SLOTS;
            self.begin_group(count)
        })
    }

    fn begin_group(&mut self, count: usize) -> usize {
        let group = self.groups;
        *self.used.get_mut(group) = u64::MAX >> (GROUP_SLOTS - count);
        self.groups += 1;
        group * GROUP_SLOTS
    }

    /// Marks the first row of `count` free slots in some groups as used.
    fn take_row(&mut self, groups: core::ops::Range<usize>, count: usize) -> Option<usize> {
        let mask = u64::MAX >> (GROUP_SLOTS - count);
        for group in groups {
            let word = self.used.get_mut(group);
            // A bit stays where a row of free slots begins, by doubling its length.
            let (mut begins, mut length) = (!*word, 1);
            while length < count && begins != 0 {
                let more = length.min(count - length);
                begins &= begins >> more;
                length += more;
            }
            if begins != 0 {
                let shift = begins.trailing_zeros();
                *word |= mask << shift;
                return Some(group * GROUP_SLOTS + shift as usize);
            }
        }
        None
    }

    /// Marks a slot as used that an index names which another process kept. False when it is used
    /// already, or there is none.
    pub(super) fn claim(&mut self, slot: usize, budget: &Budget) -> bool {
        let group = slot / GROUP_SLOTS;
        if group >= self.groups {
            if !self.used.restore(group + 1, budget)
                || !self.sums.restore((group + 1) * GROUP_SLOTS, budget)
            {
                return false;
            }
            self.groups = group + 1;
        }
        let (word, bit) = (self.used.get_mut(group), 1 << (slot % GROUP_SLOTS));
        let free = *word & bit == 0;
        *word |= bit;
        free
    }

    /// After the last [`Self::claim`]: gives the memory of checksums back that no slot has. Gives
    /// the groups without used slots.
    pub(super) fn settle(&mut self) -> io::Result<Vec<usize>> {
        self.sums.forget_rest()?;
        Ok((0..self.groups).filter(|&group| *self.used.get(group) == 0).collect())
    }

    /// Marks a slot as free. Gives its group if that has no used slots any more: none of it is to be
    /// had until [`Self::punched`], for punching it out takes long.
    pub(super) fn give(&mut self, slot: usize) -> Option<usize> {
        let group = slot / GROUP_SLOTS;
        self.clear_bit(slot);
        let word = self.used.get_mut(group);
        if *word == 0 {
            *word = u64::MAX;
            return Some(group);
        }
        self.next_group = self.next_group.min(group);
        None
    }

    fn clear_bit(&mut self, slot: usize) {
        *self.used.get_mut(slot / GROUP_SLOTS) &= !(1 << (slot % GROUP_SLOTS));
    }

    /// The slots of a group are to be had again.
    pub(super) fn punched(&mut self, group: usize) {
        *self.used.get_mut(group) = 0;
        self.next_group = self.next_group.min(group);
        self.last_row = GROUP_SLOTS;
    }

    /// The checksum of a slot in use.
    pub(super) fn sum(&self, slot: usize) -> u64 {
        *self.sums.get(slot)
    }

    /// Notes the checksum of what was written to a slot.
    pub(super) fn set_sum(&mut self, slot: usize, sum: u64) {
        *self.sums.get_mut(slot) = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_gaps_are_filled_before_there_is_no_room() {
        let budget = Budget::new(1 << 20);
        let mut slots = Slots::reserve(1024).unwrap();
        let all = slots.take_rows(32, &budget).unwrap();
        assert_eq!(all, [(0, 32)]);
        let taken: usize =
            std::iter::from_fn(|| slots.take_rows(32, &budget)).flatten().map(|row| row.1).sum();
        assert_eq!(taken, 1024 - 32);
        for slot in (0..1024).filter(|slot| slot % 3 != 0) {
            assert_eq!(slots.give(slot), None);
        }
        let mut rows = Vec::new();
        while let Some(more) = slots.take_rows(31, &budget) {
            rows.extend(more);
        }
        let count: usize = rows.iter().map(|row| row.1).sum();
        assert_eq!(count, (1024 - 342) / 31 * 31, "what was left over is free again");
        rows.sort_unstable();
        assert!(
            rows.iter().all(|row| row.1 <= 2 && (row.0..row.0 + row.1).all(|slot| slot % 3 != 0))
        );
        assert!(rows.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "no slot is had twice");
    }
}
