//! Decides which threads may poll a ring before they sleep, and for how long.
//!
//! A thread that polls answers within a microsecond, but keeps a core busy. A thread that sleeps must be woken, which
//! takes some ten microseconds, several times as long on a sleeping core of a VM, and hundreds in a guest that is woken
//! through virtio-serial. So a few threads may poll, each for a time adapted to its client's pauses. If a thread slept in
//! a pause that is no longer than its longest polling time, its polling time doubles. After a longer pause it halves,
//! finally to zero. KVM polls for its virtual processors by the same rule (the kernel's
//! Documentation/virt/kvm/halt-polling.rst). The longest polling time is [`WORTH`] times the shortest recent pause with a
//! sleep, because that is what waking takes on this host at most: in a pause much longer than that, polling saves little.
//!
//! Polling on a contended core is harmful: the scheduler counts it as work, and then lets other threads run for
//! milliseconds. A thread that had slept would run as soon as it is woken. So a thread that lost its core for
//! [`KEPT_AWAY`] or longer sleeps at once in its next waits. Each time that this repeats, it does so in twice as many.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of polls between two reads of the clock.
const LOOKS: u32 = 32;
/// The longest polling time, in shortest pauses.
const WORTH: u32 = 10;
/// The shortest pause grows by itself in this time, so that it is a recent one. What waking takes hardly changes.
const FORGETS: Duration = Duration::from_mins(10);
/// Initial polling time of a thread.
const TIME_FIRST: Duration = Duration::from_micros(10);

/// Limits the number of threads that poll at the same time.
#[derive(Debug)]
pub struct Pollers {
    free: AtomicU32,
}

/// A polling thread that loses its core for this long shares the core with computing threads.
const KEPT_AWAY: Duration = Duration::from_micros(500);
/// Number of waits in which a thread then sleeps at once. It doubles if the thread loses its core in its next polling
/// too.
const SLEEPS_FIRST: u32 = 64;
const SLEEPS_MAX: u32 = 4096;

/// The polling time of one thread.
#[derive(Debug)]
pub struct PollTime {
    time: Duration,
    /// The longest that `time` ever becomes. It must be longer than a wake-up takes both ways: a client that is woken
    /// more slowly sends its next command after the polling.
    max: Duration,
    /// The shortest recent pause with a sleep.
    shortest: Duration,
    /// Number of coming waits in which the thread sleeps at once.
    sleeps: u32,
    /// The number when it last lost its core; 0 after a polling in which it did not.
    sleeps_last: u32,
}

impl PollTime {
    /// A thread that has not waited yet, and will poll for at most `max`.
    pub const fn new(max: Duration) -> Self {
        Self { time: Duration::ZERO, max, shortest: Duration::MAX, sleeps: 0, sleeps_last: 0 }
    }

    /// Adapts the polling time after a sleep. `pause` is the time without a command, including polling and waking up.
    pub fn slept(&mut self, pause: Duration) {
        let passed = pause.as_secs_f64() / FORGETS.as_secs_f64();
        let grown = self.shortest.as_secs_f64().mul_add(passed, self.shortest.as_secs_f64());
        self.shortest = pause.min(Duration::try_from_secs_f64(grown).unwrap_or(Duration::MAX));
        let max = self.max.min(self.shortest.saturating_mul(WORTH));
        self.time = if pause > max {
            let half = self.time / 2;
            if half < TIME_FIRST { Duration::ZERO } else { half }
        } else {
            (self.time * 2).max(TIME_FIRST).min(max)
        };
    }

    /// Records that the thread has lost its core for [`KEPT_AWAY`] or longer.
    fn was_kept_away(&mut self) {
        self.sleeps_last = (self.sleeps_last * 2).clamp(SLEEPS_FIRST, SLEEPS_MAX);
        self.sleeps = self.sleeps_last;
    }

    /// Whether the thread polls in this wait.
    fn polls(&mut self) -> bool {
        let rests = self.sleeps > 0;
        self.sleeps = self.sleeps.saturating_sub(1);
        !rests && !self.time.is_zero()
    }
}

impl Pollers {
    /// Lets at most `most` threads poll at the same time.
    pub fn new(most: u32) -> Self {
        Self { free: AtomicU32::new(most) }
    }

    /// Polls `there` until it is true or this thread's polling time has passed. Returns whether it became true.
    pub fn poll(&self, time: &mut PollTime, there: impl FnMut() -> bool) -> bool {
        self.poll_beside(time, there, || {
            let start = Instant::now();
            thread::yield_now();
            start.elapsed()
        })
    }

    /// As [`Self::poll`]. `give_way` yields the core, and returns how long other threads had it.
    fn poll_beside(
        &self,
        time: &mut PollTime,
        mut there: impl FnMut() -> bool,
        mut give_way: impl FnMut() -> Duration,
    ) -> bool {
        let less = |free: u32| free.checked_sub(1);
        if !time.polls()
            || self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
        {
            return false;
        }
        let start = Instant::now();
        let mut kept_away = false;
        let found = loop {
            if (0..LOOKS).any(|_| {
                core::hint::spin_loop();
                there()
            }) {
                break true;
            }
            if start.elapsed() >= time.time {
                break false;
            }
            // Threads with work come first.
            kept_away |= give_way() >= KEPT_AWAY;
        };
        self.free.fetch_add(1, Ordering::Relaxed);
        if kept_away {
            time.was_kept_away();
        } else {
            time.sleeps_last = 0;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MAX: Duration = Duration::from_micros(200);

    /// A thread that polls for this time.
    fn polls(time: Duration) -> PollTime {
        PollTime { time, ..PollTime::new(time) }
    }

    #[test]
    fn the_time_doubles_when_a_pause_is_short_and_halves_when_it_is_long() {
        let mut time = PollTime::new(MAX);
        let mut times = Vec::new();
        for pause_us in [100, 200, 30, 199, 200, 21, 201, 25, 201, 999, 999, 999, 999, 999, 25] {
            time.slept(Duration::from_micros(pause_us));
            times.push(time.time.as_micros());
        }
        assert_eq!(times, [10, 20, 40, 80, 160, 200, 100, 200, 100, 50, 25, 12, 0, 0, 10]);
    }

    #[test]
    fn a_pause_much_longer_than_waking_takes_is_not_polled_through() {
        let after = |pauses_us: &[u64]| {
            let mut time = PollTime::new(Duration::from_millis(5));
            pauses_us.iter().for_each(|&pause| time.slept(Duration::from_micros(pause)));
            time.time.as_micros()
        };
        let then = |pause_us, times| [vec![100; 10], vec![pause_us; times]].concat();
        assert_eq!(after(&[100; 20]), 1000, "ten times the shortest");
        assert_eq!(after(&[600; 20]), 5000, "at most the most");
        assert_eq!(after(&then(1000, 10)), 1000, "ten times");
        assert_eq!(after(&then(2000, 1000)), 0, "2 ms is long where waking takes 0.1");
        let long_ago = [then(3600 * 1_000_000, 4), vec![2000; 20]].concat();
        assert_eq!(after(&long_ago), 5000, "the short pause was long ago");
    }

    #[test]
    fn nobody_polls_without_time_or_when_enough_others_do() {
        let pollers = Pollers::new(1);
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            true
        };
        assert!(!pollers.poll(&mut PollTime::new(MAX), look));
        // While one thread polls, another tries to.
        assert!(pollers.poll(&mut polls(MAX), || !pollers.poll(&mut polls(MAX), look)));
        assert_eq!(looks.get(), 0);
        assert!(pollers.poll(&mut polls(MAX), look), "the right to poll was not given back");
        assert!(!Pollers::new(0).poll(&mut polls(MAX), || true));
    }

    #[test]
    fn no_time_is_longer_than_the_most() {
        for max_us in [0, 5] {
            let mut time = PollTime::new(Duration::from_micros(max_us));
            for _ in 0..2 {
                time.slept(Duration::from_micros(1));
            }
            assert_eq!(time.time, Duration::from_micros(max_us));
        }
    }

    #[test]
    fn polling_ends_after_its_time() {
        let pollers = Pollers::new(1);
        let start = Instant::now();
        assert!(!pollers.poll(&mut polls(MAX), || false));
        assert!(start.elapsed() >= MAX);
        assert!(pollers.poll(&mut polls(MAX), || true), "the right to poll was not given back");
        // The thread's own time counts, not the largest one.
        let mut time = PollTime { max: Duration::from_mins(1), ..polls(MAX) };
        assert!(!pollers.poll(&mut time, || false));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    /// The number of next waits in which a thread does not poll; at most 10,000.
    fn sleeps(pollers: &Pollers, time: &mut PollTime) -> u32 {
        let polls = |_: &u32| !pollers.poll_beside(time, || true, || Duration::ZERO);
        (0..10_000).take_while(polls).count() as u32
    }

    #[test]
    fn who_is_kept_from_its_core_sleeps_in_more_and_more_waits() {
        let pollers = Pollers::new(1);
        let mut time = polls(Duration::from_mins(1));
        let mut waits = Vec::new();
        for _ in 0..8 {
            // Other threads take the core when this one yields; afterwards `there` is true.
            let away = Cell::new(false);
            let give_way = || {
                away.set(true);
                KEPT_AWAY
            };
            assert!(pollers.poll_beside(&mut time, || away.get(), give_way));
            let slept = (0..10_000).find(|_| time.polls()).unwrap_or(10_000);
            waits.push(slept);
        }
        assert_eq!(waits, [64, 128, 256, 512, 1024, 2048, 4096, 4096]);
        // The right to poll was given back each time. One polling without losing the core resets the number.
        time.sleeps_last = 0;
        time.was_kept_away();
        assert_eq!(sleeps(&pollers, &mut time), SLEEPS_FIRST);
        assert_eq!((time.sleeps, time.sleeps_last), (0, 0));
    }

    #[test]
    fn who_gives_way_to_short_work_goes_on_polling() {
        let pollers = Pollers::new(1);
        let mut time = polls(Duration::from_mins(1));
        let looks = Cell::new(0);
        let there = || {
            looks.set(looks.get() + 1);
            looks.get() > 10 * LOOKS
        };
        let less = || KEPT_AWAY - Duration::from_nanos(1);
        assert!(pollers.poll_beside(&mut time, there, less));
        assert_eq!(time.sleeps, 0);
    }
}
