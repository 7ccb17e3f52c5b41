//! Measures the cost of paging operations while the program runs, and decides which of them pay off.
//!
//! All results are advice. A count lost in a race affects no page.

use std::sync::atomic::{AtomicU64, Ordering};

/// One fetch or rescue in so many is timed.
pub(crate) const TIMED_ONE_IN: u64 = 16;
/// Assumed cost of a rescue until one is timed, ns. Measured: 7,000 on a Xeon (family 6, model 207), 16,000 to 30,000
/// on an EPYC (family 25, model 1), where the flush that a move needs takes as long.
const RESCUE_NS: u64 = 7_000;
/// The victim pool pays off if a fetch costs more than this many rescues: the pool takes memory, and most pages in
/// it are not rescued. Where that turns can be seen with `cargo xtask bench replacement`.
const RESCUES_PER_FETCH: u64 = 2;
/// While the pool is unused no rescue is timed. So each timed fetch reduces the assumed cost by this, until the pool is
/// tried again, ns.
const FORGOTTEN_NS: u64 = 1;
/// Largest ratio of a time to the mean; a longer one was interrupted.
const LONGEST: u64 = 2;
/// Weight of a time in the mean.
const WEIGHT: u64 = 16;
/// Pages read in clean after which the counts are halved.
const CLEAN_READS_MAX: u64 = 1 << 16;
/// One page in this many is read in clean even if that does not pay off, so that the decision can
/// change.
const CLEAN_ONE_IN: u64 = 32;

/// The costs of one process.
pub(crate) struct Costs {
    fetch_ns: AtomicU64,
    rescue_ns: AtomicU64,
    /// Pages read in clean, and those of them that were written soon after.
    clean_reads: AtomicU64,
    clean_writes: AtomicU64,
}

/// Adds a time to a running mean.
fn take_in(mean: &AtomicU64, took_ns: u64) {
    let before = mean.load(Ordering::Relaxed);
    let took_ns = took_ns.min(before.max(1000) * LONGEST);
    mean.store(before - before / WEIGHT + took_ns / WEIGHT, Ordering::Relaxed);
}

impl Costs {
    pub(crate) const fn new() -> Self {
        Self {
            fetch_ns: AtomicU64::new(0),
            rescue_ns: AtomicU64::new(RESCUE_NS),
            clean_reads: AtomicU64::new(0),
            clean_writes: AtomicU64::new(0),
        }
    }

    /// Records the time of a fetch, including the link. A slow link shows after some fetches.
    pub(crate) fn saw_fetch(&self, took_ns: u64) {
        take_in(&self.fetch_ns, took_ns);
        if !self.pool_pays() {
            let rescue_ns = self.rescue_ns.load(Ordering::Relaxed);
            let forgotten_ns = rescue_ns.saturating_sub(FORGOTTEN_NS).max(RESCUE_NS);
            self.rescue_ns.store(rescue_ns.min(forgotten_ns), Ordering::Relaxed);
        }
    }

    /// Records the time of a move out of the victim pool.
    pub(crate) fn saw_rescue(&self, took_ns: u64) {
        take_in(&self.rescue_ns, took_ns);
    }

    /// Whether the victim pool pays off: a rescued page would otherwise be fetched.
    pub(crate) fn pool_pays(&self) -> bool {
        let rescue_ns = self.rescue_ns.load(Ordering::Relaxed);
        self.fetch_ns.load(Ordering::Relaxed) > RESCUES_PER_FETCH * rescue_ns
    }

    /// Counts a page that was read in clean.
    pub(crate) fn saw_clean_read(&self) {
        if self.clean_reads.fetch_add(1, Ordering::Relaxed) >= CLEAN_READS_MAX {
            for count in [&self.clean_reads, &self.clean_writes] {
                count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }

    /// Counts a write to a page that was read in clean.
    pub(crate) fn saw_clean_write(&self) {
        self.clean_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a page that is read in should be write-protected, so that it is known to be clean when it
    /// leaves: not while more than a third of such pages are written soon after. `number` differs from page to page.
    pub(crate) fn clean_pays(&self, number: u64) -> bool {
        let reads = self.clean_reads.load(Ordering::Relaxed);
        let writes = self.clean_writes.load(Ordering::Relaxed);
        writes * 3 <= reads + 64 || number.is_multiple_of(CLEAN_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetches(costs: &Costs, count: u32, took_ns: u64) {
        (0..count).for_each(|_| costs.saw_fetch(took_ns));
    }

    #[test]
    fn the_pool_pays_when_a_fetch_costs_two_rescues() {
        let costs = Costs::new();
        assert!(!costs.pool_pays(), "nothing is known");
        fetches(&costs, 200, 13_000);
        assert!(!costs.pool_pays());
        fetches(&costs, 200, 15_000);
        assert!(costs.pool_pays());
        // A processor on which a rescue costs more.
        (0..200).for_each(|_| costs.saw_rescue(20_000));
        assert!(!costs.pool_pays());
        fetches(&costs, 200, 42_000);
        assert!(costs.pool_pays());
        (0..200).for_each(|_| costs.saw_rescue(22_000));
        assert!(!costs.pool_pays());
    }

    #[test]
    fn what_a_rescue_cost_is_forgotten_while_none_is_timed() {
        let costs = Costs::new();
        (0..200).for_each(|_| costs.saw_rescue(20_000));
        let again = (0..100_000).find(|_| {
            costs.saw_fetch(30_000);
            costs.pool_pays()
        });
        assert!(again.is_some_and(|fetches| (1_000..10_000).contains(&fetches)), "{again:?}");
        // While it is used it is measured, and nothing is forgotten.
        (0..100_000).for_each(|_| costs.saw_fetch(50_000));
        (0..200).for_each(|_| costs.saw_rescue(20_000));
        fetches(&costs, 200, 42_000);
        assert!(costs.pool_pays());
        fetches(&costs, 100, 39_000);
        assert!(!costs.pool_pays());
    }

    #[test]
    fn a_rescue_that_costs_less_than_assumed_stays_so_while_none_is_timed() {
        let costs = Costs::new();
        (0..200).for_each(|_| costs.saw_rescue(3_000));
        fetches(&costs, 200, 5_000);
        assert!(!costs.pool_pays());
        fetches(&costs, 200, 7_000);
        assert!(costs.pool_pays());
    }

    #[test]
    fn an_interruption_says_nothing_and_a_slow_link_is_believed_after_some_fetches() {
        let costs = Costs::new();
        fetches(&costs, 200, 5_000);
        fetches(&costs, 3, 50_000_000);
        assert!(!costs.pool_pays());
        fetches(&costs, 40, 200_000);
        assert!(costs.pool_pays());
    }

    #[test]
    fn clean_pages_pay_until_more_than_a_third_of_them_are_written() {
        let costs = Costs::new();
        let mut writes = 0;
        for read in 0..3 * CLEAN_READS_MAX {
            assert!(costs.clean_pays(1), "after {read} reads and {writes} writes");
            costs.saw_clean_read();
            if read % 3 == 0 {
                costs.saw_clean_write();
                writes += 1;
            }
        }
        // They are written more often from now on, and that shows after as many pages as count.
        let turned = (0..CLEAN_READS_MAX).find(|_| {
            costs.saw_clean_read();
            costs.saw_clean_write();
            !costs.clean_pays(1)
        });
        assert!(turned.is_some_and(|after| after < CLEAN_READS_MAX / 16), "{turned:?}");
        let tried = (0..320).filter(|&number| costs.clean_pays(number)).count();
        assert_eq!(tried, 10, "one in 32 is tried all the same");
    }
}
