//! How long a holder takes for reads. Old measurements fade.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Buckets for each doubling of the time.
const STEPS: u32 = 4;
/// Buckets: the last one is for 16 s and longer.
const BUCKETS: usize = 24 * STEPS as usize;
/// The 99th percentile is computed anew after this many reads.
const ROUND: u32 = 64;
/// The counts are halved when they reach this sum.
const READS_MAX: u32 = 2048;
/// The weight of a read in the mean: one part of so many.
const MEAN_PARTS: u32 = 16;
/// How long to wait for a holder before the other copy is asked too: without measurements, at least and at most, µs.
const WAIT_US: u32 = 10_000;
const WAIT_MIN_US: u32 = 1_000;
const WAIT_MAX_US: u32 = 50_000;

/// See the module. Threads share it; a read that two threads count at the same time may be counted once.
#[derive(Debug)]
pub struct Latency {
    counts: [AtomicU32; BUCKETS],
    /// Reads since the last percentile.
    fresh: AtomicU32,
    /// The 99th percentile, µs; 0 if there is none yet.
    p99_us: AtomicU32,
    /// The mean, µs; 0 if there is none yet.
    mean_us: AtomicU32,
}

impl Latency {
    pub const fn new() -> Self {
        Self {
            counts: [const { AtomicU32::new(0) }; BUCKETS],
            fresh: AtomicU32::new(0),
            p99_us: AtomicU32::new(0),
            mean_us: AtomicU32::new(0),
        }
    }

    /// Records how long a read took.
    pub fn note(&self, took: Duration) {
        let us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        self.counts[bucket_of(us)].fetch_add(1, Relaxed);
        let mean = self.mean_us.load(Relaxed);
        let next = match mean {
            0 => us,
            _ => mean - mean / MEAN_PARTS + us / MEAN_PARTS,
        };
        self.mean_us.store(next.max(1), Relaxed);
        if self.fresh.fetch_add(1, Relaxed) + 1 >= ROUND {
            self.fresh.store(0, Relaxed);
            self.end_round();
        }
    }

    fn end_round(&self) {
        let sum: u32 = self.counts.iter().map(|count| count.load(Relaxed)).sum();
        let mut above = sum / 100;
        let p99 = (0..BUCKETS).rev().find(|&at| {
            let count = self.counts[at].load(Relaxed);
            let is_it = count > above;
            above = above.saturating_sub(count);
            is_it
        });
        self.p99_us.store(p99.map_or(0, end_of), Relaxed);
        if sum >= READS_MAX {
            for count in &self.counts {
                count.store(count.load(Relaxed) / 2, Relaxed);
            }
        }
    }

    /// The mean of the last reads, µs; 0 if there were none.
    pub fn mean_us(&self) -> u32 {
        self.mean_us.load(Relaxed)
    }

    /// How long a read waits for this holder before the other copy is asked too: the 99th percentile, within bounds.
    pub fn patience(&self) -> Duration {
        let us = match self.p99_us.load(Relaxed) {
            0 => WAIT_US,
            p99_us => p99_us.clamp(WAIT_MIN_US, WAIT_MAX_US),
        };
        Duration::from_micros(us.into())
    }
}

/// Which of two copies is read first, from the means of their holders: the one of the last time, unless the other one
/// takes less than three quarters of its time. A holder that was not measured stays where it is.
pub const fn preferred(last: usize, means_us: [u32; 2]) -> usize {
    let (its, others) = (means_us[last], means_us[1 - last]);
    if its != 0 && others != 0 && others < its - its / 4 { 1 - last } else { last }
}

const fn bucket_of(us: u32) -> usize {
    let octave = us.ilog2();
    // The two bits below the highest one.
    let step = if octave < 2 {
        (us << (2 - octave)) & (STEPS - 1)
    } else {
        us >> (octave - 2) & (STEPS - 1)
    };
    let bucket = (octave * STEPS + step) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The end of a bucket, µs.
const fn end_of(bucket: usize) -> u32 {
    let (octave, step) = (bucket as u32 / STEPS, bucket as u32 % STEPS);
    ((1 << octave) * (STEPS + step + 1)).div_ceil(STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn a_time_is_below_the_end_of_its_bucket_and_above_three_quarters_of_it() {
        for time in (1..5000).chain([70_000, 1 << 20, 9_000_000]) {
            let end = end_of(bucket_of(time));
            assert!(time <= end && end <= time + time / 4 + 1, "{time} {end}");
        }
        assert_eq!(bucket_of(u32::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_patience_is_the_99th_percentile_within_bounds() {
        let latency = Latency::new();
        assert_eq!(latency.patience(), us(WAIT_US.into()), "before a measurement");
        for read in 0..2000 {
            // Two of a hundred take 8 ms.
            latency.note(us(if read % 50 == 0 { 8_000 } else { 100 }));
        }
        let patience = latency.patience();
        assert!((us(8_000)..us(10_500)).contains(&patience), "{patience:?}");
        for _ in 0..20_000 {
            latency.note(us(100));
        }
        assert_eq!(latency.patience(), us(WAIT_MIN_US.into()), "what was long ago has faded");
        for _ in 0..20_000 {
            latency.note(us(3_000_000));
        }
        assert_eq!(latency.patience(), us(WAIT_MAX_US.into()));
    }

    #[test]
    fn a_mean_follows_what_changes() {
        let latency = Latency::new();
        assert_eq!(latency.mean_us(), 0);
        (0..200).for_each(|_| latency.note(us(1_000)));
        assert!((900..1100).contains(&latency.mean_us()), "{}", latency.mean_us());
        (0..200).for_each(|_| latency.note(us(80)));
        assert!(latency.mean_us() < 120, "{}", latency.mean_us());
    }

    #[test]
    fn a_copy_is_preferred_once_it_is_clearly_faster() {
        assert_eq!(preferred(0, [100, 80]), 0, "a fifth is not enough");
        assert_eq!(preferred(0, [100, 70]), 1);
        assert_eq!(preferred(1, [100, 120]), 1, "nor is it on the way back");
        assert_eq!(preferred(1, [100, 140]), 0);
        assert_eq!(preferred(0, [100, 0]), 0, "nobody has measured the other one");
        assert_eq!(preferred(1, [100, 0]), 1);
    }
}
