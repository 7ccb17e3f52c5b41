//! An object on the blade, as the process that fills it sees it.

use super::WORD_BITS;
use crate::region::GrowArray;
use spillway_types::Key;

/// This process's state of an object that it holds.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) name: u64,
    /// A fork made others holders of it, and they may still be.
    pub(super) shared: bool,
    /// It is the one that is written to.
    pub(super) grows: bool,
    pub(super) live: u32,
    pub(super) next: u32,
    /// Values that were freed and are still on the blade; a bit for each. Kept from object to object.
    pub(super) dead: Option<GrowArray<u64>>,
    pub(super) dead_count: u32,
    /// No word before this one has a bit.
    pub(super) dead_from: u32,
}

impl Object {
    /// Takes keys of freed values; how many.
    pub(super) fn take_dead(&mut self, keys: &mut [Key], most: usize) -> usize {
        let most = most.min(keys.len());
        let mut count = 0;
        let Some(dead) = &mut self.dead else { return 0 };
        for word in self.dead_from..self.next.div_ceil(WORD_BITS) {
            self.dead_from = word;
            let bits = dead.get_mut(word as usize);
            while *bits != 0 && count < most {
                let index = word * WORD_BITS + bits.trailing_zeros();
                *bits &= *bits - 1;
                keys[count] = Key::new(self.name, index);
                count += 1;
            }
            if count == most {
                break;
            }
        }
        self.dead_count -= count as u32;
        count
    }

    /// Puts back a key of [`Self::take_dead`]: its value is still on the blade.
    pub(super) fn put_back(&mut self, key: Key) {
        let (word, bit) = (key.index / WORD_BITS, key.index % WORD_BITS);
        // The object may have been left meanwhile.
        if key.object == self.name
            && let Some(dead) = &mut self.dead
        {
            *dead.get_mut(word as usize) |= 1 << bit;
            self.dead_count += 1;
            self.dead_from = self.dead_from.min(word);
        }
    }
}
