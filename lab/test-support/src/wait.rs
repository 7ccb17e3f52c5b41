//! Waiting for what other threads and processes do.
//!
//! What they wait for is a text, or `std::fmt::from_fn`, which tells a failed test what there is instead.
//!
//! A test never sleeps for as long as something should take: it looks until it is so, and gives up after a time that
//! no machine takes, however busy it is.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for what must happen. It says nothing about how soon it should.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until `holds`.
///
/// # Panics
/// Says that it waited for `what` after [`PATIENCE`].
#[track_caller]
pub fn until(what: impl Display, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}

/// As [`until`], where the time has a meaning.
///
/// # Panics
/// Says that it waited for `what` after `limit`.
#[track_caller]
pub fn within(limit: Duration, what: impl Display, mut holds: impl FnMut() -> bool) {
    let found = look(Instant::now() + limit, || holds().then_some(()));
    assert!(found.is_some(), "waited {limit:?} for {what}");
}

/// Waits until `find` finds something.
///
/// # Panics
/// Says that it waited for `what` after [`PATIENCE`].
#[track_caller]
pub fn until_some<T>(what: impl Display, find: impl FnMut() -> Option<T>) -> T {
    let Some(found) = look(Instant::now() + PATIENCE, find) else {
        panic!("waited {PATIENCE:?} for {what}");
    };
    found
}

/// Waits until `actual` gives what is `expected`.
///
/// # Panics
/// Says what it gives instead after [`PATIENCE`].
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

/// What `find` finds before the end. It looks once more after the last pause, so a thread that was not run is no failure.
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
