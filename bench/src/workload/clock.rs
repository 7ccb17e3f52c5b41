//! The time of an access, and histograms of such times that do not allocate while they count.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Steps in each power of two: a percentile is within 0.8 %.
const STEPS: usize = 128;
/// The last power of two is 2^40 ns, 18 minutes.
const BUCKETS: usize = (40 - 7 + 2) * STEPS;

/// The processor's time stamp counter; the system's clock on other processors.
#[derive(Clone, Copy)]
pub struct Clock {
    ns_per_tick: f64,
}

impl Clock {
    /// Calibrates the counter against the system's clock for 20 ms.
    pub fn calibrate() -> Self {
        let (wall, first) = (Instant::now(), Self::ticks());
        while wall.elapsed() < Duration::from_millis(20) {}
        let ticks = Self::ticks() - first;
        Self { ns_per_tick: wall.elapsed().as_nanos() as f64 / ticks as f64 }
    }

    /// Now, in ticks.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// Now, in ticks.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    pub fn ticks() -> u64 {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    /// The time since `ticks`, ns.
    #[inline(always)]
    pub fn since_ns(self, ticks: u64) -> u64 {
        ((Self::ticks() - ticks) as f64 * self.ns_per_tick) as u64
    }
}

/// A histogram of times with 128 linear steps in each power of two.
pub struct Times {
    buckets: [u32; BUCKETS],
}

impl Times {
    /// An empty histogram.
    pub const fn new() -> Self {
        Self { buckets: [0; BUCKETS] }
    }

    /// Counts one time.
    #[inline(always)]
    pub fn add(&mut self, ns: u64) {
        self.buckets[bucket(ns)] += 1;
    }

    /// Adds another thread's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
    }

    /// Only the times above a threshold.
    pub fn over_ns(mut self, threshold_ns: f64) -> Self {
        self.buckets[..bucket(threshold_ns as u64)].fill(0);
        self
    }

    /// The number of times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&count| u64::from(count)).sum()
    }

    /// The mean, ns; 0 without times.
    pub fn mean_ns(&self) -> f64 {
        let sum: f64 = (0..BUCKETS).map(|at| middle_ns(at) * f64::from(self.buckets[at])).sum();
        sum / self.count().max(1) as f64
    }

    /// The time that `percent` of the times do not exceed, ns; 0 without times.
    pub fn percentile_ns(&self, percent: f64) -> f64 {
        let rank = (self.count() as f64 * percent / 100.0) as u64;
        let mut seen = 0;
        for at in 0..BUCKETS {
            seen += u64::from(self.buckets[at]);
            if seen > rank {
                return middle_ns(at);
            }
        }
        0.0
    }
}

/// A version of [`Times`] that several threads share.
pub struct SharedTimes {
    buckets: [AtomicU32; BUCKETS],
}

impl SharedTimes {
    /// An empty histogram.
    pub const fn new() -> Self {
        Self { buckets: [const { AtomicU32::new(0) }; BUCKETS] }
    }

    /// Counts one time.
    #[inline(always)]
    pub fn add(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn read(&self) -> Times {
        let mut times = Times::new();
        for (to, from) in times.buckets.iter_mut().zip(&self.buckets) {
            *to = from.load(Ordering::Relaxed);
        }
        times
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let exponent = ns.ilog2() as usize;
    let step = (ns >> (exponent - 7)) as usize % STEPS;
    ((exponent - 6) * STEPS + step).min(BUCKETS - 1)
}

fn middle_ns(bucket: usize) -> f64 {
    if bucket < STEPS {
        return bucket as f64;
    }
    let width = 1u64 << (bucket / STEPS - 1);
    ((STEPS + bucket % STEPS) as u64 * width) as f64 + width as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lies_within_one_percent_of_its_times() {
        for ns in (0..100_000).chain((1..39).map(|power| (1u64 << power) + 3)) {
            let error = (middle_ns(bucket(ns)) - ns as f64).abs();
            assert!(error <= 0.008 * ns as f64, "{ns} ns became {}", middle_ns(bucket(ns)));
        }
    }

    #[test]
    fn percentiles_of_a_hundred_times() {
        let mut times = Times::new();
        (1..=100).for_each(|ns| times.add(ns));
        assert_eq!(times.percentile_ns(50.0), 51.0);
        assert_eq!(times.percentile_ns(99.0), 100.0);
        assert_eq!(times.mean_ns(), 50.5);
        let high = times.over_ns(91.0);
        assert_eq!((high.count(), high.percentile_ns(50.0)), (10, 96.0));
    }
}
