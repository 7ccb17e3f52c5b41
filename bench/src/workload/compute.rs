//! Work between accesses that touches no memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Steps that are timed to learn how long one takes.
const TIMED_STEPS: u64 = 1 << 20;
/// Times that are taken; the shortest was disturbed least.
const TIMES: usize = 8;

/// A piece of work of fixed length.
#[derive(Clone, Copy)]
pub struct Work {
    steps: u64,
}

impl Work {
    /// Work that takes so long on a processor of its own, ns.
    pub fn of_ns(ns: u64) -> Self {
        if ns == 0 {
            return Self { steps: 0 };
        }
        let took = (0..TIMES).map(|_| timed(TIMED_STEPS)).min().unwrap_or_default();
        Self { steps: steps_in(ns, took) }
    }

    /// Does the work.
    #[inline(always)]
    pub fn go(self) {
        let mut state = self.steps;
        for _ in 0..self.steps {
            // Each step needs the result of the one before.
            state = black_box(state.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1);
        }
    }
}

fn timed(steps: u64) -> Duration {
    let began = Instant::now();
    Work { steps }.go();
    began.elapsed()
}

/// Steps that fit into `ns`, if [`TIMED_STEPS`] took `took`.
fn steps_in(ns: u64, took: Duration) -> u64 {
    (u128::from(ns) * u128::from(TIMED_STEPS) / took.as_nanos().max(1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_as_long_as_it_says() {
        let a_step_takes_2_ns = Duration::from_nanos(2 * TIMED_STEPS);
        assert_eq!(steps_in(10_000, a_step_takes_2_ns), 5_000);
        assert_eq!(steps_in(0, a_step_takes_2_ns), 0);
    }
}
