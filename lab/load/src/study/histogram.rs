//! A histogram of times with 32 steps in each power of two: within 3.2 %.

use serde::Serialize;

const STEPS_BITS: u32 = 5;
const STEPS: u64 = 1 << STEPS_BITS;

/// A histogram of times.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

/// The quantiles of a histogram and the counts that they come from.
#[derive(Debug, Serialize)]
pub struct Latencies {
    /// The median, µs.
    pub p50_us: f64,
    /// The 90th percentile, µs.
    pub p90_us: f64,
    /// The 99th percentile, µs.
    pub p99_us: f64,
    /// The 99.9th percentile, µs.
    pub p999_us: f64,
    /// The upper bound of each bucket in µs, and the number of times in it.
    pub counts: Vec<(f64, u64)>,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self { counts: vec![0; bucket_of(u64::MAX) + 1], total: 0 }
    }

    /// Adds a time.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.total += 1;
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    /// The upper bound of the bucket up to which `share` of the times lie, µs.
    fn quantile_us(&self, share: f64) -> f64 {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            seen >= wanted
        };
        self.counts.iter().position(reaches).map_or(0.0, bound_us)
    }

    /// The figures for the report.
    pub fn latencies(&self) -> Latencies {
        let seen = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Latencies {
            p50_us: self.quantile_us(0.5),
            p90_us: self.quantile_us(0.9),
            p99_us: self.quantile_us(0.99),
            p999_us: self.quantile_us(0.999),
            counts: seen.map(|(bucket, count)| (bound_us(bucket), *count)).collect(),
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    let above = (u64::BITS - ns.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    (u64::from(above) * STEPS + (ns >> above)) as usize
}

/// The largest time of a bucket, µs.
fn bound_us(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    let above = (bucket / STEPS).saturating_sub(1);
    let first = (bucket - above * STEPS) as f64;
    ((first + 1.0) * 2f64.powi(above as i32) - 1.0) / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_within_a_thirty_second() {
        for ns in [0, 1, 31, 32, 63, 64, 65, 1000, 123_456, 10_u64.pow(9), 10_u64.pow(12)] {
            let bound_ns = bound_us(bucket_of(ns)) * 1e3;
            let allowed = ns as f64 * (1.0 + 1.0 / 32.0) + 0.5;
            assert!(bound_ns >= ns as f64 - 0.5 && bound_ns <= allowed, "{ns}: {bound_ns}");
        }
    }

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for ns in 0..100_000 {
            let bucket = bucket_of(ns);
            assert!(bucket == last || bucket == last + 1, "{ns}");
            last = bucket;
        }
    }

    #[test]
    fn quantiles_of_two_halves() {
        let (mut low, mut high) = (Histogram::new(), Histogram::new());
        (1..=1000).for_each(|us| low.add(us * 1000));
        (1001..=2000).for_each(|us| high.add(us * 1000));
        low.merge(&high);
        let found = low.latencies();
        for (found, wanted) in
            [(found.p50_us, 1000.0), (found.p90_us, 1800.0), (found.p999_us, 1998.0)]
        {
            assert!(found >= wanted && found <= wanted * 1.033, "{found} for {wanted}");
        }
        assert_eq!(found.counts.iter().map(|(_, count)| count).sum::<u64>(), 2000);
    }
}
