//! The results of a run.

use spillway_types::Statistics;

/// The part of the oracle's progress at which the shares count as settled.
const SETTLED: f64 = 0.9;

/// A run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Who set the targets.
    pub policy: String,
    /// The clients, in order.
    pub clients: Vec<ClientReport>,
    /// When the last client ended, s.
    pub end_s: f64,
    /// Mean change of targets in an interval, pages.
    pub churn_pages: f64,
    /// For each shift of demand, the number of intervals until the shares reached `SETTLED` of the oracle's progress.
    /// If they never did, the intervals until the next shift or the end.
    pub settled_intervals: Vec<f64>,
}

/// A client of a run.
#[derive(Clone, Debug)]
pub struct ClientReport {
    /// Its name.
    pub name: String,
    /// Time that it computed, ns: its running time with enough memory.
    pub compute_ns: u64,
    /// Time that it waited for pages, ns.
    pub stall_ns: u64,
    /// Its running time as a multiple of that with enough memory; sleep counts in neither.
    pub slowdown: f64,
    /// Its counters in the store.
    pub statistics: Statistics,
}

impl Report {
    pub(crate) fn new(
        policy: String,
        clients: Vec<ClientReport>,
        end_ns: u64,
        mut sums: Sums,
        interval_ns: u64,
    ) -> Self {
        sums.settle(end_ns, interval_ns);
        let intervals = (end_ns as f64 / interval_ns as f64).max(1.0);
        Self {
            policy,
            clients,
            end_s: end_ns as f64 / 1e9,
            churn_pages: sums.changed_pages / intervals,
            settled_intervals: sums.settled,
        }
    }

    fn slowdowns(&self) -> impl Iterator<Item = f64> {
        self.clients.iter().map(|client| client.slowdown)
    }

    /// The mean of the clients' slowdowns.
    pub fn mean_slowdown(&self) -> f64 {
        self.slowdowns().sum::<f64>() / self.clients.len().max(1) as f64
    }

    /// The worst client's slowdown.
    pub fn worst_slowdown(&self) -> f64 {
        self.slowdowns().fold(1.0, f64::max)
    }

    /// Jain's index over slowdowns, 1 when all are the same (R. Jain, D. Chiu and W. Hawe, "A Quantitative Measure of
    /// Fairness and Discrimination", 1984).
    pub fn jain(&self) -> f64 {
        let (sum, squares) =
            self.slowdowns().fold((0.0, 0.0), |(sum, squares), it| (sum + it, squares + it * it));
        if squares > 0.0 { sum * sum / (squares * self.clients.len() as f64) } else { 1.0 }
    }

    /// Mean number of intervals until the shares settled after a shift; `None` without a shift.
    pub fn settled_mean(&self) -> Option<f64> {
        let count = self.settled_intervals.len();
        (count > 0).then(|| self.settled_intervals.iter().sum::<f64>() / count as f64)
    }
}

/// Sums over a run in progress.
#[derive(Debug)]
pub(crate) struct Sums {
    changed_pages: f64,
    shifted_ns: Option<u64>,
    settled: Vec<f64>,
    total_pages: u64,
    interval_ns: u64,
}

impl Sums {
    pub(crate) const fn new(total_pages: u64, interval_ns: u64) -> Self {
        Self { changed_pages: 0.0, shifted_ns: None, settled: Vec::new(), total_pages, interval_ns }
    }

    /// Records a change of a target. A target without limit counts as the whole node.
    pub(crate) fn change(&mut self, was: u64, is: u64) {
        let within = |target: u64| target.min(self.total_pages);
        self.changed_pages += within(was).abs_diff(within(is)) as f64;
    }

    /// Records a shift of demand. Shifts within an interval count as one.
    pub(crate) fn shift(&mut self, now_ns: u64) {
        match self.shifted_ns {
            Some(before_ns) if now_ns.saturating_sub(before_ns) < self.interval_ns => {}
            _ => {
                self.settle(now_ns, self.interval_ns);
                self.shifted_ns = Some(now_ns);
            }
        }
    }

    pub(crate) const fn is_shifting(&self) -> bool {
        self.shifted_ns.is_some()
    }

    /// Records the current shares' part of the best progress.
    pub(crate) fn reached(&mut self, now_ns: u64, part: f64) {
        if part >= SETTLED {
            self.settle(now_ns, self.interval_ns);
        }
    }

    fn settle(&mut self, now_ns: u64, interval_ns: u64) {
        if let Some(shifted_ns) = self.shifted_ns.take() {
            let took_ns = now_ns.saturating_sub(shifted_ns);
            self.settled.push(took_ns as f64 / interval_ns as f64);
        }
    }
}
