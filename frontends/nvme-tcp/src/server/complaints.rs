//! Log lines about connections that fail. Any peer can cause any number of them, so most are only counted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use spillway_types::{Peer, SeldomOfPeers};

/// Decides which lines are logged.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<SeldomOfPeers>);

impl Complaints {
    fn lines(&self) -> MutexGuard<'_, SeldomOfPeers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a line about a peer may be logged now.
    pub(crate) fn line(&self, peer: Peer, now_ms: u64) -> bool {
        self.lines().line(peer, now_ms)
    }

    /// Logs how many lines about each peer were left out, for each interval that has ended.
    pub(crate) fn sum_up(&self, now_ms: u64) {
        let mut lines = self.lines();
        while let Some((peer, left_out)) = lines.left_out(now_ms) {
            tracing::info!(%peer, left_out, "NVMe/TCP: more lines like the last ones of this peer");
        }
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        self.sum_up(u64::MAX);
    }
}
