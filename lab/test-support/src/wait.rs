//! Waits for other threads and processes.
//!
//! The description of the condition is a text, or a `std::fmt::from_fn` that shows a failed test the actual state.
//!
//! A test never sleeps for the expected time of an operation. It polls until the condition holds, and gives up after a
//! time that exceeds that of the busiest machine.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for a necessary event. This is not a limit on its speed.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until `holds`.
///
/// # Panics
/// If `what` does not hold within [`PATIENCE`].
#[track_caller]
pub fn until(what: impl Display, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}

/// Like [`until`], if the time matters.
///
/// # Panics
/// If `what` does not hold within `limit`.
#[track_caller]
pub fn within(limit: Duration, what: impl Display, mut holds: impl FnMut() -> bool) {
    let found = look(Instant::now() + limit, || holds().then_some(()));
    assert!(found.is_some(), "waited {limit:?} for {what}");
}

/// Waits until `find` returns a value.
///
/// # Panics
/// If there is no value within [`PATIENCE`].
#[track_caller]
pub fn until_some<T>(what: impl Display, find: impl FnMut() -> Option<T>) -> T {
    let Some(found) = look(Instant::now() + PATIENCE, find) else {
        panic!("waited {PATIENCE:?} for {what}");
    };
    found
}

/// Waits until `actual` returns `expected`.
///
/// # Panics
/// If it returns another value after [`PATIENCE`].
#[track_caller]
pub fn until_equal<T: Debug + PartialEq>(
    what: impl Display,
    expected: T,
    mut actual: impl FnMut() -> T,
) {
    let equal = || (actual() == expected).then_some(());
    if look(Instant::now() + PATIENCE, equal).is_none() {
        panic!("waited {PATIENCE:?} for {what} to be {expected:?}; it is {:?}", actual());
    }
}

/// A deadline for a call that must succeed.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A deadline for a call that should reach it.
pub fn after_ms(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

/// The value that `find` returns before the end. It is called once more after the last pause, so a delayed thread does
/// not cause a failure.
fn look<T>(end: Instant, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let is_last = Instant::now() >= end;
        let found = find();
        if found.is_some() || is_last {
            return found;
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_until_it_is_so() {
        let mut looks = 0;
        until_equal("the fifth look", 5, || {
            looks += 1;
            looks
        });
        assert_eq!(looks, 5);
        until("the sixth look", || {
            looks += 1;
            looks > 6
        });
        assert_eq!(until_some("a number", || Some(looks)), 7);
    }

    #[test]
    #[should_panic(expected = "for the impossible")]
    fn it_gives_up() {
        within(Duration::from_millis(5), "the impossible", || false);
    }

    #[test]
    fn it_looks_at_least_once() {
        within(Duration::ZERO, "what is so already", || true);
    }
}
