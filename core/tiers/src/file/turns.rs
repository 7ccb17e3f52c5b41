//! Limits concurrent moves of pages to a disk: a few putting tasks move pages, and the others wait until one has
//! made room.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// More at the same time make no disk faster, and each has copies of its pages.
const TURNS_MAX: usize = 8;

/// Those that move pages just now.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<TurnsState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnsState {
    /// Turns that are taken.
    taken: usize,
    /// How many move pages, with a turn or without.
    moving: usize,
    /// How many moves have ended so far. Whatever has not left can be chosen again.
    ended: u64,
}

/// A turn, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn<'a>(&'a Turns);

/// Somebody who chooses pages and moves them, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Moving<'a> {
    turns: &'a Turns,
    has_pages: bool,
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, TurnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn; or none when there was none for `deadline`, or a move has ended first.
    pub fn begin(&self, deadline: Duration) -> Option<Turn<'_>> {
        let mut state = self.state();
        let before = state.ended;
        if state.taken >= TURNS_MAX {
            let waits = |state: &TurnsState| state.taken >= TURNS_MAX && state.ended == before;
            state = self.wait(state, deadline, waits);
            if waits(&state) || state.ended != before {
                return None;
            }
        }
        state.taken += 1;
        Some(Turn(self))
    }

    /// To be held by whoever moves pages, from before it chooses them until they are where they go.
    pub fn moving(&self) -> Moving<'_> {
        self.state().moving += 1;
        Moving { turns: self, has_pages: false }
    }

    /// How many moves have ended so far, for [`Self::wait_for_end`].
    pub fn ended(&self) -> u64 {
        self.state().ended
    }

    /// For those that find no page to move because others have them: waits until a move has ended since there were
    /// `before`, no longer than until `deadline` from now. Whether one has: then there is room, or pages to choose.
    pub fn wait_for_end(&self, before: u64, deadline: Duration) -> bool {
        let waits = |state: &TurnsState| state.moving != 0 && state.ended == before;
        self.wait(self.state(), deadline, waits).ended != before
    }

    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, TurnsState>,
        deadline: Duration,
        waits: impl Fn(&TurnsState) -> bool,
    ) -> MutexGuard<'a, TurnsState> {
        let waited = self.changed.wait_timeout_while(state, deadline, |state| waits(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().taken -= 1;
        self.0.changed.notify_all();
    }
}

impl Moving<'_> {
    /// To be called when it has chosen pages, which nobody else finds until it ends.
    pub const fn has_pages(&mut self) {
        self.has_pages = true;
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.moving -= 1;
        state.ended += u64::from(self.has_pages);
        drop(state);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    /// Has several wait, and tells what they answer after `ends`, and not before. One may not have begun to wait, so
    /// that is called until all have ended.
    fn wait_for(turns: &Turns, wait: impl Fn() -> bool + Sync, mut ends: impl FnMut()) -> bool {
        let began = Instant::now();
        let answers = std::thread::scope(|scope| {
            let waits = [(); 3].map(|()| scope.spawn(&wait));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.iter().any(|waits| waits.is_finished()), "{turns:?}");
            while !waits.iter().all(|waits| waits.is_finished()) {
                ends();
                std::thread::sleep(Duration::from_millis(10));
            }
            waits.map(|waits| waits.join().unwrap())
        });
        assert!(began.elapsed() < LONG);
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        answers[0]
    }

    #[test]
    fn who_finds_no_turn_waits_for_room_or_for_a_turn_or_for_the_deadline() {
        let turns = Turns::default();
        let mut held: Vec<_> = (0..TURNS_MAX).map(|_| turns.begin(LONG).unwrap()).collect();
        let began = Instant::now();
        assert!(turns.begin(Duration::from_millis(30)).is_none());
        assert!(began.elapsed() >= Duration::from_millis(30));
        let room = || turns.moving().has_pages();
        assert!(!wait_for(&turns, || turns.begin(LONG).is_some(), room));
        // All of those that wait come to their turn, one after the other.
        assert!(wait_for(&turns, || turns.begin(LONG).is_some(), || drop(held.pop())));
    }

    #[test]
    fn who_finds_no_page_waits_for_those_that_have_them() {
        let turns = Turns::default();
        let before = turns.ended();
        assert!(!turns.wait_for_end(before, LONG), "nobody moves anything");
        let [mut first, mut second] = [Some(turns.moving()), Some(turns.moving())];
        assert!(!turns.wait_for_end(before, Duration::from_millis(30)));
        let room = || {
            if let Some(mut moving) = first.take() {
                moving.has_pages();
            }
        };
        assert!(wait_for(&turns, || turns.wait_for_end(before, LONG), room));
        assert!(turns.wait_for_end(before, LONG), "a move has ended since");
        let before = turns.ended();
        assert!(!wait_for(&turns, || turns.wait_for_end(before, LONG), || drop(second.take())));
        assert!(!turns.wait_for_end(before, LONG), "whoever chose nothing moved nothing");
    }
}
