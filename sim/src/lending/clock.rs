//! A host's clock. It begins anywhere, and its speed differs a little from that of the others.

use core::time::Duration;

/// Parts per million by which a clock is faster or slower at most. The least margin of a lease here is 0.1 s, the longest lease 12 s:
/// two clocks that differ by twice this much disagree by 0.05 s.
const DRIFT_PPM: u64 = 2_000;

/// The clock of a host: it only rises, in restarts of the daemon too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    began_us: u64,
    /// Its speed: so many parts per million of true time.
    ppm: u64,
}

impl Clock {
    /// A clock from two numbers by chance.
    pub const fn new(began: u64, drift: u64) -> Self {
        let began_us = began % 1_000_000_000_000;
        Self { began_us, ppm: 1_000_000 - DRIFT_PPM + drift % (2 * DRIFT_PPM + 1) }
    }

    /// The same clock, faster by this many percent.
    pub const fn faster_by(self, percent: u64) -> Self {
        Self { ppm: self.ppm / 100 * (100 + percent), ..self }
    }

    /// What it shows at a true time.
    pub const fn at(self, true_us: u64) -> Duration {
        let passed = true_us as u128 * self.ppm as u128 / 1_000_000;
        Duration::from_micros(self.began_us + passed as u64)
    }

    /// The first true time at which it shows this.
    pub const fn when(self, shown: Duration) -> u64 {
        let passed = (shown.as_micros() as u64).saturating_sub(self.began_us);
        (passed as u128 * 1_000_000).div_ceil(self.ppm as u128) as u64
    }

    /// How much true time a span of its time takes at most, µs.
    pub const fn longest_us(span_us: u64) -> u64 {
        span_us + span_us / 400
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_it_shows_has_come_when_it_says() {
        for (began, drift) in [(0, 0), (5, 2_000), (999, 4_000), (u64::MAX, u64::MAX)] {
            let clock = Clock::new(began, drift);
            for true_us in [0, 1, 999, 5_000_000, 400_000_000] {
                let shown = clock.at(true_us);
                assert!(clock.when(shown) <= true_us, "{clock:?} {true_us}");
                let next = shown + Duration::from_micros(1);
                assert!(clock.at(clock.when(next)) >= next, "{clock:?} {true_us}");
                assert!(clock.when(next) > true_us, "{clock:?} {true_us}");
            }
        }
    }

    #[test]
    fn clocks_differ_within_the_bound() {
        let span = |clock: Clock| (clock.at(10_000_000) - clock.at(0)).as_micros() as u64;
        let (slow, fast) = (span(Clock::new(7, 0)), span(Clock::new(7, 2 * DRIFT_PPM)));
        assert_eq!((slow, fast), (9_980_000, 10_020_000));
        assert!(
            Clock::new(7, 0).when(Duration::from_micros(7 + 10_000_000))
                <= Clock::longest_us(10_000_000)
        );
        assert_eq!(span(Clock::new(7, DRIFT_PPM).faster_by(10)), 11_000_000);
    }
}
