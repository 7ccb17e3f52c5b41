//! Eviction while the other handlers sleep, so that its TLB flushes interrupt no other core.
//!
//! `UFFDIO_MOVE` flushes the TLB once for each run of adjacent pages: about a dozen times for a window of scattered
//! pages. Each flush interrupts every core that runs a task of this address space at that moment. A core runs none
//! while its thread waits for a page and its handler sleeps. So one handler evicts for all: the others, when they have
//! a fault in hand or need room themselves, sleep until it is done.

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};

/// How long the evicting handler waits for the others at most, ns. It is the time from one fault of a thread to the
/// next, for threads that do little in between.
const WAIT_NS: u64 = 15_000;
/// How long a handler sleeps at most, ns. An eviction takes a tenth of that.
const SLEEP_NS: i64 = 1_000_000;
/// Most evictions in a row that do not wait for the others, after these did not come.
const SKIPPED_MAX: u32 = 255;

/// Which handlers sleep while another one evicts.
pub(crate) struct Quiesce {
    /// 1 while a handler evicts for all. The others sleep on it.
    evicting: AtomicU32,
    sleeping: AtomicU32,
    /// Evictions that still do not wait for the others.
    skip: AtomicU32,
    /// The last value of `skip`.
    skipped: AtomicU32,
}

/// How a handler's sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// No handler evicts for all: it did not sleep.
    No,
    /// It slept until the eviction was done.
    UntilDone,
    /// The eviction took too long to wait for.
    TooLong,
}

impl Quiesce {
    pub(crate) const fn new() -> Self {
        let [evicting, sleeping, skip, skipped] = [const { AtomicU32::new(0) }; 4];
        Self { evicting, sleeping, skip, skipped }
    }

    /// Calls `evict`, with true once this many `others` sleep, with false if they do not come in time. None when
    /// another handler evicts already: then the caller slept.
    pub(crate) fn evict_for_all<T>(
        &self,
        others: u32,
        now_ns: impl Fn() -> u64,
        evict: impl FnOnce(bool) -> T,
    ) -> Option<T> {
        if self.skips() {
            return Some(evict(false));
        }
        if self.evicting.swap(1, Ordering::SeqCst) == 1 {
            self.sleep();
            return None;
        }
        let came = self.wait(others, now_ns);
        self.set_skip(came);
        let evicted = evict(came);
        self.evicting.store(0, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&self.evicting, futex::Flags::PRIVATE, i32::MAX as u32);
        }
        Some(evicted)
    }

    /// Sleeps while another handler evicts for all. The caller holds no lock.
    pub(crate) fn sleep(&self) -> Slept {
        if self.evicting.load(Ordering::Relaxed) == 0 {
            return Slept::No;
        }
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let most = futex::Timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
        let ended = futex::wait(&self.evicting, futex::Flags::PRIVATE, 1, Some(&most));
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        if ended == Err(rustix::io::Errno::TIMEDOUT) { Slept::TooLong } else { Slept::UntilDone }
    }

    /// Waits until all others sleep. False when they do not in time.
    fn wait(&self, others: u32, now_ns: impl Fn() -> u64) -> bool {
        let until_ns = now_ns() + WAIT_NS;
        while self.sleeping.load(Ordering::SeqCst) < others {
            if now_ns() >= until_ns {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    /// Threads that compute between their faults do not come: then few evictions wait.
    fn set_skip(&self, came: bool) {
        let skipped = if came { 0 } else { self.skipped.load(Ordering::Relaxed) * 2 + 1 };
        let skipped = skipped.min(SKIPPED_MAX);
        self.skipped.store(skipped, Ordering::Relaxed);
        self.skip.store(skipped, Ordering::Relaxed);
    }

    fn skips(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
        skip != 0
    }
}

#[cfg(test)]
mod tests {
    use super::{Quiesce, SKIPPED_MAX, Slept, WAIT_NS};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    /// A clock that stands still, so that a wait has no end.
    fn still() -> u64 {
        0
    }

    /// A clock on which every look is a microsecond after the last one.
    fn clock() -> impl Fn() -> u64 {
        let looks = AtomicU64::new(0);
        move || looks.fetch_add(1000, Ordering::Relaxed)
    }

    #[test]
    fn an_eviction_begins_when_all_others_sleep_and_wakes_them() {
        let quiesce = Quiesce::new();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        quiesce.sleep();
                    }
                });
            }
            for _ in 0..200 {
                assert_eq!(quiesce.evict_for_all(3, still, |came| came), Some(true));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(quiesce.sleeping.load(Ordering::SeqCst), 0);
        assert_eq!(quiesce.sleep(), Slept::No);
    }

    #[test]
    fn a_sleep_ends_with_the_eviction() {
        let quiesce = Quiesce::new();
        let woken = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // On a busy machine a sleep may end by itself: then it sleeps again.
                while quiesce.sleep() != Slept::UntilDone {
                    thread::yield_now();
                }
                woken.store(true, Ordering::SeqCst);
            });
            while !woken.load(Ordering::SeqCst) {
                quiesce.evict_for_all(0, still, |_| {
                    let is_there = || quiesce.sleeping.load(Ordering::SeqCst) != 0;
                    while !is_there() && !woken.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(quiesce.sleeping.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn who_finds_another_evicting_sleeps_and_does_not_evict() {
        let quiesce = Quiesce::new();
        let inner = quiesce.evict_for_all(0, still, |_| {
            quiesce.evict_for_all(0, still, |_| panic!("two handlers evict for all"))
        });
        assert_eq!(inner, Some(None));
        assert_eq!(quiesce.evict_for_all(0, still, |came| came), Some(true));
    }

    #[test]
    fn a_sleep_ends_though_the_eviction_does_not() {
        let quiesce = Quiesce::new();
        assert_eq!(quiesce.evict_for_all(0, still, |_| quiesce.sleep()), Some(Slept::TooLong));
    }

    #[test]
    fn others_that_do_not_come_are_waited_for_less_and_less_often() {
        let quiesce = Quiesce::new();
        let mut gaps = Vec::new();
        let mut gap = 0;
        while gaps.len() < 12 {
            let waited = AtomicU64::new(0);
            let tick = clock();
            let now_ns = || {
                waited.store(tick(), Ordering::Relaxed);
                waited.load(Ordering::Relaxed)
            };
            assert_eq!(quiesce.evict_for_all(1, now_ns, |came| came), Some(false));
            match waited.into_inner() {
                0 => gap += 1,
                ns => {
                    assert_eq!(ns, WAIT_NS);
                    gaps.push(std::mem::take(&mut gap));
                }
            }
        }
        assert_eq!(gaps, [0, 1, 3, 7, 15, 31, 63, 127, 255, 255, 255, SKIPPED_MAX]);
        // Once they come every eviction waits again.
        while quiesce.evict_for_all(0, still, |came| came) == Some(false) {}
        assert!((0..5).all(|_| quiesce.evict_for_all(0, still, |came| came) == Some(true)));
    }
}
