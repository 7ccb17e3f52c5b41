//! Who moves pages to a disk: of those that put, a few at the same time; the others wait for one that makes room.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// More at the same time make no disk faster, and each has copies of its pages.
const TURNS_MAX: usize = 8;

/// Those that move pages just now.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Turns that are taken.
    taken: usize,
    /// How many move pages, with a turn or without.
    moving: usize,
    /// How many have made room so far.
    made_room: u64,
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
    made_room: bool,
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn; or none when there was none for `deadline`, or somebody has made room first.
    pub fn begin(&self, deadline: Duration) -> Option<Turn<'_>> {
        let mut state = self.state();
        let before = state.made_room;
        if state.taken >= TURNS_MAX {
            let waits = |state: &State| state.taken >= TURNS_MAX && state.made_room == before;
            state = self.wait(state, deadline, waits);
            if waits(&state) || state.made_room != before {
                return None;
            }
        }
        state.taken += 1;
        Some(Turn(self))
    }

    /// To be held by whoever moves pages, from before it chooses them until they are where they go.
    pub fn moving(&self) -> Moving<'_> {
        self.state().moving += 1;
        Moving { turns: self, made_room: false }
    }

    /// How many have made room so far, for [`Self::wait_for_room`].
    pub fn made_room(&self) -> u64 {
        self.state().made_room
    }

    /// For those that find no page to move because others have them: waits until one of these has made room
    /// since there were `before`, no longer than until `deadline` from now. Whether one has.
    pub fn wait_for_room(&self, before: u64, deadline: Duration) -> bool {
        let waits = |state: &State| state.moving != 0 && state.made_room == before;
        self.wait(self.state(), deadline, waits).made_room != before
    }

    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Duration,
        waits: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
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
    /// To be called when it has moved `pages`.
    pub const fn moved(&mut self, pages: usize) {
        self.made_room |= pages != 0;
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.moving -= 1;
        state.made_room += u64::from(self.made_room);
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
        let room = || turns.moving().moved(1);
        assert!(!wait_for(&turns, || turns.begin(LONG).is_some(), room));
        // All of those that wait come to their turn, one after the other.
        assert!(wait_for(&turns, || turns.begin(LONG).is_some(), || drop(held.pop())));
    }

    #[test]
    fn who_finds_no_page_waits_for_those_that_have_them() {
        let turns = Turns::default();
        let before = turns.made_room();
        assert!(!turns.wait_for_room(before, LONG), "nobody moves anything");
        let [mut first, mut second] = [Some(turns.moving()), Some(turns.moving())];
        assert!(!turns.wait_for_room(before, Duration::from_millis(30)));
        let room = || {
            if let Some(mut moving) = first.take() {
                moving.moved(3);
            }
        };
        assert!(wait_for(&turns, || turns.wait_for_room(before, LONG), room));
        assert!(turns.wait_for_room(before, LONG), "somebody has made room since");
        let before = turns.made_room();
        assert!(!wait_for(&turns, || turns.wait_for_room(before, LONG), || drop(second.take())));
        assert!(!turns.wait_for_room(before, LONG), "whoever moved nothing made no room");
    }
}
