//! When the thread of [`crate::mender`] works, pauses and ends.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The pause between two rounds over the slabs, while copies are behind.
const ROUND: Duration = Duration::from_millis(20);

/// Wakes the thread, and ends it.
#[derive(Debug, Default)]
pub struct Mending {
    wanted: Mutex<Wanted>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    round: bool,
    end: bool,
}

impl Mending {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy is behind.
    pub fn wake(&self) {
        let mut wanted = self.wanted();
        if !std::mem::replace(&mut wanted.round, true) {
            self.woken.notify_one();
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.wanted().end = true;
        self.woken.notify_one();
    }

    /// Waits until there is something to do. Returns false at the end.
    pub fn wait(&self) -> bool {
        let mut wanted = self.wanted();
        while !wanted.round && !wanted.end {
            wanted = self.woken.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
        wanted.round = false;
        !wanted.end
    }

    /// Waits until the next round. Returns false at the end.
    pub fn pause(&self) -> bool {
        let until = Instant::now() + ROUND;
        let mut wanted = self.wanted();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if wanted.end || left.is_zero() {
                return !wanted.end;
            }
            wanted = match self.woken.wait_timeout(wanted, left) {
                Ok((wanted, _)) => wanted,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Whether the thread is to end.
    pub fn is_ended(&self) -> bool {
        self.wanted().end
    }
}
