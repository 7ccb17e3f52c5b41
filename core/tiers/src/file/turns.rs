//! Who moves pages to a disk: a few at the same time, the others wait for one of them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// More at the same time make no disk faster, and each has copies of its pages.
const TURNS_MAX: usize = 8;

/// Those that move pages just now.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// How many have ended so far.
    ended: u64,
}

/// One of them, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn<'a>(&'a Turns);

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn, or none after one of the others has ended, for which this waits no longer than until
    /// `deadline` from now.
    pub fn begin(&self, deadline: Duration) -> Option<Turn<'_>> {
        let mut state = self.state();
        if state.running >= TURNS_MAX {
            Self::wait(&self.ended, state, deadline);
            return None;
        }
        state.running += 1;
        Some(Turn(self))
    }

    /// Waits until one has ended, no longer than until `deadline` from now. False when there is none.
    pub fn wait_for_one(&self, deadline: Duration) -> bool {
        let state = self.state();
        let some = state.running != 0;
        if some {
            Self::wait(&self.ended, state, deadline);
        }
        some
    }

    fn wait(ended: &Condvar, state: MutexGuard<'_, State>, deadline: Duration) {
        let before = state.ended;
        let waited = ended.wait_timeout_while(state, deadline, |state| state.ended == before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running -= 1;
        state.ended += 1;
        drop(state);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn who_finds_no_turn_waits_for_one_that_ends_or_for_the_deadline() {
        let turns = Turns::default();
        let long = Duration::from_secs(60);
        assert!(!turns.wait_for_one(long), "nobody moves anything");
        let mut held: Vec<_> = (0..TURNS_MAX).map(|_| turns.begin(long).unwrap()).collect();
        let began = Instant::now();
        assert!(turns.begin(Duration::from_millis(30)).is_none());
        assert!(began.elapsed() >= Duration::from_millis(30));
        std::thread::scope(|scope| {
            let waits = [
                scope.spawn(|| drop(turns.begin(long))),
                scope.spawn(|| assert!(turns.wait_for_one(long))),
            ];
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.iter().any(|waits| waits.is_finished()));
            // As long as one may not have begun to wait.
            while !waits.iter().all(|waits| waits.is_finished()) {
                drop(held.remove(0));
                std::thread::sleep(Duration::from_millis(10));
                held.extend(turns.begin(long));
            }
        });
        assert!(began.elapsed() < long);
    }
}
