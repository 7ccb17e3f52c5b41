//! Log lines about failed connections, rate-limited because any peer can cause them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_types::{Peer, SeldomOfPeers};

/// The rate limit.
#[derive(Debug)]
pub struct Complaints {
    began: Instant,
    lines: Mutex<SeldomOfPeers>,
}

impl Complaints {
    pub fn new() -> Self {
        Self { began: Instant::now(), lines: Mutex::default() }
    }

    fn lines(&self) -> MutexGuard<'_, SeldomOfPeers> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Whether a line about a peer may be logged now.
    pub fn line(&self, peer: Peer) -> bool {
        self.lines().line(peer, self.now_ms())
    }

    /// Logs how many lines were suppressed in past intervals.
    pub fn sum_up(&self) {
        self.say(self.now_ms());
    }

    fn say(&self, now_ms: u64) {
        let mut lines = self.lines();
        while let Some((peer, left_out)) = lines.left_out(now_ms) {
            tracing::info!(%peer, left_out, "NBD: more lines like the last ones of this peer");
        }
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        self.say(u64::MAX);
    }
}
