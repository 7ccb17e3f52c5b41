//! The ages of a swap disk's blocks in the store: which the guest has read back, and when it wrote the others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long ago a block must have been written, and not read since, to count as unread.
pub const UNREAD_AFTER: Duration = Duration::from_secs(600);
/// Shortest time between two marks.
const MARK_INTERVAL: Duration = Duration::from_secs(30);
/// The age of a block that was read back, which is older than all others.
const READ_BACK: u32 = 0;

/// The turn in which each block was put. A turn is an interval of the memory manager.
#[derive(Debug)]
pub struct Ages {
    /// One for each block. Blocks that were in the store when the disk was opened count as put then.
    turns: Box<[AtomicU32]>,
    turn: AtomicU32,
    /// When some turns began, the oldest first: at most one that is older than [`UNREAD_AFTER`].
    marks: Mutex<VecDeque<(Instant, u32)>>,
}

impl Ages {
    /// Ages of that many blocks.
    pub fn new(blocks: u64) -> Self {
        let turns = (0..blocks).map(|_| AtomicU32::new(1)).collect();
        Self { turns, turn: AtomicU32::new(1), marks: Mutex::default() }
    }

    fn marks(&self) -> MutexGuard<'_, VecDeque<(Instant, u32)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a new turn.
    pub fn next_turn(&self, now: Instant) {
        // 2^32 turns of a tenth of a second are 13 years.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) + 1;
        let mut marks = self.marks();
        if marks.back().is_none_or(|last| now.duration_since(last.0) >= MARK_INTERVAL) {
            marks.push_back((now, turn));
        }
        while marks.get(1).is_some_and(|second| now.duration_since(second.0) >= UNREAD_AFTER) {
            marks.pop_front();
        }
    }

    /// Notes that a block was put.
    pub fn put(&self, block: u64) {
        self.turns[block as usize].store(self.turn.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Notes that the guest has read a block back.
    pub fn read_back(&self, block: u64) {
        if let Some(turn) = self.turns.get(block as usize) {
            turn.store(READ_BACK, Ordering::Relaxed);
        }
    }

    /// A block's place in the order of demotion: the lowest goes first.
    pub fn order(&self, block: u64) -> u32 {
        self.turns[block as usize].load(Ordering::Relaxed)
    }

    /// Whether a block that is in the store is unread for [`UNREAD_AFTER`].
    pub fn unread(&self, now: Instant) -> impl Fn(u64) -> bool {
        let marks = self.marks();
        let oldest = marks.front().filter(|it| now.duration_since(it.0) >= UNREAD_AFTER);
        // Blocks of this turn or a later one are too young.
        let young = oldest.map_or(0, |it| it.1);
        move |block| (READ_BACK + 1..young).contains(&self.order(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_unread_ten_minutes_after_it_was_put_unless_it_was_read() {
        let ages = Ages::new(4);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let unread = |now| (0..4).filter(|&block| ages.unread(at(now))(block)).collect::<Vec<_>>();
        ages.read_back(1);
        ages.next_turn(at(1));
        ages.put(2);
        assert_eq!(unread(600), Vec::<u64>::new());
        for second in 2..=640 {
            ages.next_turn(at(second));
        }
        ages.put(3);
        // The marks are 30 s apart, so a block may count up to 30 s late.
        assert_eq!(unread(640), [0, 2], "3 is young, and 1 was read");
        ages.put(0);
        ages.read_back(2);
        assert_eq!(unread(640), Vec::<u64>::new());
        for second in 641..=1400 {
            ages.next_turn(at(second));
        }
        assert_eq!(unread(1400), [0, 3]);
        assert!(ages.marks().len() < 25, "marks do not pile up: {}", ages.marks().len());
    }
}
