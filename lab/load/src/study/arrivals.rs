//! The due times of requests in an open loop: a Poisson process, reproducible by its seed.

use std::time::Duration;

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp};

/// The due times of one connection, from the start of the loop.
///
/// The requests of all connections together are a Poisson process too.
pub struct Arrivals {
    gaps_s: Exp<f64>,
    random: SmallRng,
    due_s: f64,
}

impl Arrivals {
    /// This many requests per second on average.
    ///
    /// # Errors
    /// The rate is not above 0.
    pub fn new(per_second: f64, seed: u64) -> Result<Self> {
        let random = SmallRng::seed_from_u64(seed);
        Ok(Self { gaps_s: Exp::new(per_second)?, random, due_s: 0.0 })
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.due_s += self.gaps_s.sample(&mut self.random);
        Some(Duration::from_secs_f64(self.due_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(seed: u64) -> Vec<Duration> {
        Arrivals::new(1000.0, seed).unwrap().take(100_000).collect()
    }

    #[test]
    fn due_times_are_of_the_seed_and_grow() {
        assert_eq!(due(7), due(7));
        assert_ne!(due(7), due(8));
        assert!(due(7).is_sorted());
    }

    #[test]
    fn gaps_are_exponential() {
        let due = due(7);
        let last_s = due.last().unwrap().as_secs_f64();
        assert!((last_s - 100.0).abs() < 1.5, "100000 at 1000 a second end after {last_s} s");
        let gaps = due.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
        let long = gaps.filter(|gap_s| *gap_s > 0.001).count() as f64 / due.len() as f64;
        assert!((long - (-1_f64).exp()).abs() < 0.01, "{long} are longer than the mean");
    }
}
