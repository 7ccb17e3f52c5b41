//! Brings all tasks to rest, so that a fork copies a consistent pager and store.

use rustix::thread::{Timespec, futex, nanosleep, sched_yield};
use std::sync::atomic::{AtomicU32, Ordering};

/// Looks at work in progress before the one who waits for its end sleeps between them.
const SHORT_LOOKS: u32 = 1000;
/// The pause between later looks.
const LONG_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Places at work; each task with a place of its own needs no shared cache line.
pub const PLACES: usize = 64;

#[repr(align(64))]
struct WorkSlot(AtomicU32);

/// The tasks at work, and whether all should stop.
pub struct Rest {
    stopping: AtomicU32,
    places: [WorkSlot; PLACES],
}

/// At work until dropped.
pub struct Work<'a> {
    place: &'a AtomicU32,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.place.fetch_sub(1, Ordering::Release);
    }
}

impl Rest {
    /// No task at work.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stopping: AtomicU32::new(0),
            places: [const { WorkSlot(AtomicU32::new(0)) }; PLACES],
        }
    }

    /// Begins a piece of work, after the rest if there is one.
    pub fn work(&self, place: usize) -> Work<'_> {
        let place = &self.places[place % PLACES].0;
        loop {
            place.fetch_add(1, Ordering::SeqCst);
            if self.stopping.load(Ordering::SeqCst) == 0 {
                return Work { place };
            }
            place.fetch_sub(1, Ordering::Release);
            let _ = futex::wait(&self.stopping, futex::Flags::PRIVATE, 1, None);
        }
    }

    /// Begins a piece of work unless there is a rest.
    pub fn try_work(&self, place: usize) -> Option<Work<'_>> {
        let place = &self.places[place % PLACES].0;
        place.fetch_add(1, Ordering::SeqCst);
        let work = Work { place };
        (self.stopping.load(Ordering::SeqCst) == 0).then_some(work)
    }

    /// Prevents new work, and waits until all present work has ended.
    pub fn stop(&self) {
        while self.stopping.swap(1, Ordering::SeqCst) == 1 {
            let _ = futex::wait(&self.stopping, futex::Flags::PRIVATE, 1, None);
        }
        let mut looks = 0;
        for place in &self.places {
            while place.0.load(Ordering::SeqCst) != 0 {
                looks += 1;
                if looks < SHORT_LOOKS {
                    sched_yield();
                } else {
                    // Work that takes long waits for a disk or a blade.
                    let _ = nanosleep(&LONG_PAUSE);
                }
            }
        }
    }

    /// Permits work again.
    pub fn go_on(&self) {
        self.stopping.store(0, Ordering::SeqCst);
        let _ = futex::wake(&self.stopping, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

impl Default for Rest {
    fn default() -> Self {
        Self::new()
    }
}
