//! Algorithm 4 of SmarTmem: targets that follow refusals.

use crate::{Percent, Sample};

/// Pages that a client may always leave unused.
const THRESHOLD_PAGES_MIN: u64 = 64;

/// The policy smart-alloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmartAlloc {
    /// The step of an interval: a target grows by this part of the node's pages, and shrinks by
    /// this part of itself.
    pub p: Percent,
    /// Pages that a client may leave unused before its target shrinks. The paper does not define
    /// it; `None` means [`Self::p`] of the node's pages, and at least 64.
    pub threshold_pages: Option<u64>,
}

impl Default for SmartAlloc {
    fn default() -> Self {
        Self { p: Percent::hundredths(200), threshold_pages: None }
    }
}

impl SmartAlloc {
    /// As [`crate::Policy::targets`]. A client without a target begins with an equal share, which the paper
    /// does not define.
    ///
    /// The target shrinks by a share of itself, as in the algorithm (line 18); the text uses a share
    /// of the client's used pages. If the sum exceeds the node's pages, each target is reduced
    /// proportionally; the algorithm's factor (line 28) would be an integer, 0.
    pub(crate) fn targets(&self, total_pages: u64, clients: &[Sample]) -> Vec<u64> {
        let first = total_pages.checked_div(clients.len() as u64).unwrap_or_default();
        // A target beyond the cap would take pages from the others without use.
        let target =
            |client: &Sample| self.target(total_pages, first, client).min(client.cap_pages);
        let mut targets: Vec<u64> = clients.iter().map(target).collect();
        let sum: u128 = targets.iter().map(|&target| u128::from(target)).sum();
        if sum > u128::from(total_pages) {
            for target in &mut targets {
                *target = (u128::from(*target) * u128::from(total_pages) / sum) as u64;
            }
        }
        targets
    }

    fn target(&self, total_pages: u64, first: u64, client: &Sample) -> u64 {
        let current = client.target_pages.unwrap_or(first);
        if client.puts_refused > 0 {
            // Even on a small node, a target that shrinks must be able to grow again.
            return current.saturating_add(self.p.of(total_pages).max(1));
        }
        // A client that uses more than its target has no unused pages: the difference is signed.
        let unused = current.saturating_sub(client.used_pages);
        if unused > self.threshold(total_pages) { self.p.taken_from(current) } else { current }
    }

    fn threshold(&self, total_pages: u64) -> u64 {
        self.threshold_pages.unwrap_or_else(|| self.p.of(total_pages).max(THRESHOLD_PAGES_MIN))
    }
}
