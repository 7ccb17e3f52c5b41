//! Who may look at a ring without pause before it sleeps, and for how long.
//!
//! A thread that polls answers within a microsecond and keeps a core busy. One that sleeps has to be woken, which takes
//! some ten microseconds, and several times as long where the core sleeps too and belongs to a VM. So a few threads may
//! poll, each for as long as its own client's pauses are worth it: when a thread has slept in a pause that was no longer than
//! the longest polling, its time doubles; when in a longer one, it halves, in the end to nothing. KVM polls for its virtual
//! processors by the same rule (the kernel's Documentation/virt/kvm/halt-polling.rst).

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Looks at the condition between two looks at the clock.
const LOOKS: u32 = 32;
/// The time of polling that a thread begins with; it doubles as it grows.
const TIME_FIRST: Duration = Duration::from_micros(10);

/// The right to poll, which a limited number of threads has at the same time.
#[derive(Debug)]
pub struct Pollers {
    free: AtomicU32,
    time_max: Duration,
}

/// How long one thread polls.
#[derive(Debug, Default)]
pub struct PollTime(Duration);

impl Pollers {
    /// At most `most` threads at the same time poll, each for at most `time_max`.
    pub fn new(most: u32, time_max: Duration) -> Self {
        Self { free: AtomicU32::new(most), time_max }
    }

    /// Looks at `there` until it is true, for as long as this thread polls; whether it became true.
    pub fn poll(&self, time: &PollTime, mut there: impl FnMut() -> bool) -> bool {
        let less = |free: u32| free.checked_sub(1);
        if time.0.is_zero()
            || self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
        {
            return false;
        }
        let start = Instant::now();
        let found = loop {
            if (0..LOOKS).any(|_| {
                core::hint::spin_loop();
                there()
            }) {
                break true;
            }
            if start.elapsed() >= time.0 {
                break false;
            }
            // Who has something to do comes first.
            thread::yield_now();
        };
        self.free.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// A thread that has slept takes note of how long no command came, polling and waking up included.
    pub fn slept(&self, time: &mut PollTime, pause: Duration) {
        time.0 = if pause > self.time_max {
            let half = time.0 / 2;
            if half < TIME_FIRST { Duration::ZERO } else { half }
        } else {
            (time.0 * 2).max(TIME_FIRST).min(self.time_max)
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MAX: Duration = Duration::from_micros(200);

    #[test]
    fn the_time_doubles_when_a_pause_is_short_and_halves_when_it_is_long() {
        let pollers = Pollers::new(1, MAX);
        let mut time = PollTime::default();
        let mut times = Vec::new();
        for pause_us in [100, 200, 30, 199, 200, 1, 201, 5, 201, 999, 999, 999, 999, 999, 5] {
            pollers.slept(&mut time, Duration::from_micros(pause_us));
            times.push(time.0.as_micros());
        }
        assert_eq!(times, [10, 20, 40, 80, 160, 200, 100, 200, 100, 50, 25, 12, 0, 0, 10]);
    }

    #[test]
    fn nobody_polls_without_time_or_when_enough_others_do() {
        let pollers = Pollers::new(1, MAX);
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            true
        };
        assert!(!pollers.poll(&PollTime::default(), look));
        let time = PollTime(MAX);
        // One polls, and within it another one would.
        assert!(pollers.poll(&time, || !pollers.poll(&time, look)));
        assert_eq!(looks.get(), 0);
        assert!(pollers.poll(&time, look), "the right to poll was not given back");
        assert!(!Pollers::new(0, MAX).poll(&time, || true));
    }

    #[test]
    fn no_time_is_longer_than_the_most() {
        for max_us in [0, 5] {
            let (pollers, mut time) =
                (Pollers::new(1, Duration::from_micros(max_us)), PollTime::default());
            for _ in 0..2 {
                pollers.slept(&mut time, Duration::ZERO);
            }
            assert_eq!(time.0, Duration::from_micros(max_us));
        }
    }

    #[test]
    fn polling_ends_after_its_time() {
        let pollers = Pollers::new(1, MAX);
        let start = Instant::now();
        assert!(!pollers.poll(&PollTime(MAX), || false));
        assert!(start.elapsed() >= MAX);
        assert!(pollers.poll(&PollTime(MAX), || true), "the right to poll was not given back");
        // Its own time, not the most.
        let pollers = Pollers::new(1, Duration::from_mins(1));
        assert!(!pollers.poll(&PollTime(MAX), || false));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
