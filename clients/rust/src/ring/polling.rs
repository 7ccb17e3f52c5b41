//! Decides whether a thread polls for an answer before it sleeps.
//!
//! Polling is fastest while the server answers on another core. If the other cores are busy, the
//! server waits for the polling thread's core, and answers only once that thread sleeps: polling then
//! wastes time. This depends on the load, so each lane tries both.

use std::time::Duration;

/// After this many unsuccessful polls in a row, a lane sleeps at once.
const VAIN_MAX: u32 = 2;
/// A lane that sleeps at once polls again after this many waits.
const SLEEPS: u32 = 64;

/// A lane's results of polling.
#[derive(Debug)]
pub struct Polling {
    time: Duration,
    /// Unsuccessful polls in a row.
    vain: u32,
    /// Waits since the last of them.
    sleeps: u32,
}

impl Polling {
    /// A lane that has not waited yet, and polls for at most `time`.
    pub const fn new(time: Duration) -> Self {
        Self { time, vain: 0, sleeps: 0 }
    }

    /// How long to poll this time.
    pub fn time(&mut self) -> Duration {
        if self.vain < VAIN_MAX {
            return self.time;
        }
        self.sleeps += 1;
        if self.sleeps <= SLEEPS {
            return Duration::ZERO;
        }
        self.sleeps = 0;
        self.time
    }

    /// Records how a poll of [`Self::time`] ended.
    pub fn ended(&mut self, found: bool) {
        self.vain = if found { 0 } else { self.vain.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_micros(50);

    /// The poll times of this many waits that all end like `found`.
    fn times(polling: &mut Polling, waits: u32, found: bool) -> Vec<bool> {
        let wait = |_| {
            let looks = !polling.time().is_zero();
            if looks {
                polling.ended(found);
            }
            looks
        };
        (0..waits).map(wait).collect()
    }

    #[test]
    fn after_two_looks_in_vain_one_wait_in_65_looks() {
        let mut polling = Polling::new(TIME);
        let looks = times(&mut polling, 2 + 65 * 2, false);
        let places: Vec<_> = (0..looks.len()).filter(|&at| looks[at]).collect();
        assert_eq!(places, [0, 1, 66, 131]);
    }

    #[test]
    fn a_look_that_finds_something_makes_all_look_again() {
        let mut polling = Polling::new(TIME);
        times(&mut polling, 66, false);
        assert_eq!(times(&mut polling, 3, true), [true; 3]);
        // A single unsuccessful poll changes nothing.
        for _ in 0..3 {
            assert_eq!(times(&mut polling, 1, false), [true]);
            assert_eq!(times(&mut polling, 1, true), [true]);
        }
        assert_eq!(times(&mut polling, 3, false), [true, true, false]);
        assert_eq!(polling.time(), Duration::ZERO);
    }

    #[test]
    fn a_lane_without_time_never_looks() {
        assert_eq!(times(&mut Polling::new(Duration::ZERO), 200, true), [false; 200]);
        assert_eq!(Polling::new(TIME).time(), TIME);
    }
}
