//! Ranges that are held: they stay where they are while system calls are at work on them.

use rustix::thread::sched_yield;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Ranges that can be held at the same time. A thread that finds none free waits for one. A call
/// that waits for another program, on a socket for example, holds its range meanwhile.
pub(crate) const HOLDS: usize = 1024;

/// Ranges that system calls are at work on.
pub(crate) struct Holds {
    /// Counts the forks that led here: a child's holds are its own.
    generation: AtomicU32,
    count: AtomicU32,
    ranges: [(AtomicUsize, AtomicUsize); HOLDS],
}

/// A held range; released when dropped.
pub struct Hold<'a> {
    holds: &'a Holds,
    at: usize,
    generation: u32,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.holds.generation.load(Ordering::Relaxed) != self.generation {
            return;
        }
        self.holds.ranges[self.at].1.store(0, Ordering::Release);
        self.holds.ranges[self.at].0.store(0, Ordering::Release);
        self.holds.count.fetch_sub(1, Ordering::Release);
    }
}

impl Holds {
    pub(crate) const fn new() -> Self {
        let ranges = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; HOLDS];
        Self { generation: AtomicU32::new(0), count: AtomicU32::new(0), ranges }
    }

    /// In a forked child: drops the holds of its parent's threads.
    pub(crate) fn let_go_after_fork(&mut self) {
        *self.generation.get_mut() += 1;
        *self.count.get_mut() = 0;
        for range in &mut self.ranges {
            (*range.0.get_mut(), *range.1.get_mut()) = (0, 0);
        }
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn hold(&self, start: usize, end: usize) -> Hold<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        loop {
            for (at, range) in self.ranges.iter().enumerate() {
                let free = range.0.compare_exchange(0, start, Ordering::SeqCst, Ordering::Relaxed);
                if free.is_ok() {
                    range.1.store(end, Ordering::SeqCst);
                    let generation = self.generation.load(Ordering::Relaxed);
                    return Hold { holds: self, at, generation };
                }
            }
            sched_yield();
        }
    }

    /// Holds a range if nothing is held. Do not also hold it by [`Self::hold`].
    pub(crate) fn hold_alone(&self, start: usize, end: usize) -> Option<Hold<'_>> {
        self.count.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        // Ranges are released before the count, so they are all free.
        let (from, to) = &self.ranges[0];
        from.store(start, Ordering::SeqCst);
        to.store(end, Ordering::SeqCst);
        let generation = self.generation.load(Ordering::Relaxed);
        Some(Hold { holds: self, at: 0, generation })
    }

    /// Whether a system call is at work on part of a range.
    pub(crate) fn overlap(&self, start: usize, end: usize) -> bool {
        self.count.load(Ordering::SeqCst) != 0
            && self.ranges.iter().any(|(from, to)| {
                from.load(Ordering::SeqCst) < end && start < to.load(Ordering::SeqCst)
            })
    }
}
