//! Units that a thread works on. Another thread that needs such a unit registers, and is woken when the unit is free.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Run;

/// The busy units, and whether another thread waits for each.
#[derive(Debug, Default)]
pub struct Busy {
    units: Mutex<HashMap<u64, bool>>,
    freed: Condvar,
}

impl Busy {
    fn units(&self) -> std::sync::MutexGuard<'_, HashMap<u64, bool>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a unit. False if it is busy; [`Self::release`] then tells the owner that a thread waits.
    pub fn claim(&self, unit: u64) -> bool {
        let mut units = self.units();
        match units.get_mut(&unit) {
            Some(came) => {
                *came = true;
                false
            }
            None => {
                units.insert(unit, false);
                true
            }
        }
    }

    /// Claims the free units at the start of a run; `None` if the first is busy.
    pub fn claim_run(&self, run: Run) -> Option<Run> {
        let mut units = self.units();
        let free = run.units().take_while(|unit| !units.contains_key(unit)).count() as u64;
        let claimed = Run { first: run.first, count: free };
        claimed.units().for_each(|unit| {
            units.insert(unit, false);
        });
        (free > 0).then_some(claimed)
    }

    /// Releases a run; returns whether a thread waits for any of its units.
    pub fn release(&self, run: Run) -> bool {
        let mut units = self.units();
        let came = run.units().filter(|unit| units.remove(unit) == Some(true)).count() > 0;
        drop(units);
        self.freed.notify_all();
        came
    }

    /// Waits until no unit of the run is busy; false if that takes longer than `most`.
    pub fn wait_free(&self, run: Run, most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut units = self.units();
        loop {
            if !units.keys().any(|unit| run.units().contains(unit)) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.freed.wait_timeout(units, left);
            units = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn one_at_a_time_works_on_a_unit_and_hears_who_came() {
        let busy = Busy::default();
        assert!(busy.claim(7));
        assert!(!busy.release(Run::one(7)));
        assert!(busy.claim(7));
        assert!(!busy.claim(7), "in work");
        assert!(busy.claim(8));
        assert!(busy.release(Run::one(7)), "somebody came");
        assert!(!busy.release(Run::one(8)));
    }

    #[test]
    fn a_run_ends_before_what_is_in_work() {
        let busy = Busy::default();
        assert!(busy.claim(3));
        assert_eq!(busy.claim_run(Run { first: 0, count: 9 }), Some(Run { first: 0, count: 3 }));
        assert_eq!(busy.claim_run(Run { first: 3, count: 9 }), None);
        assert!(!busy.claim(2));
        assert!(busy.release(Run { first: 0, count: 3 }), "for the last of the run");
    }

    #[test]
    fn waiting_ends_when_the_run_is_free_or_the_time_is_over() {
        let busy = Busy::default();
        let run = Run { first: 4, count: 2 };
        assert!(busy.claim(5) && busy.claim(9));
        assert!(!busy.wait_free(run, SOON));
        std::thread::scope(|scope| {
            scope.spawn(|| busy.release(Run::one(5)));
            assert!(busy.wait_free(run, Duration::from_secs(60)));
        });
    }
}
