//! Log lines about failed connections, rate-limited because any peer can cause them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_types::{Peer, Seldom, SeldomOfPeers};

/// The rate limits of a server's log lines. Dropping them logs how many lines about peers were left out.
#[derive(Debug)]
pub struct Complaints {
    server: &'static str,
    began: Instant,
    of_peers: Mutex<SeldomOfPeers>,
    /// Apart from the lines about peers, so that neither hide the others.
    shortages: Mutex<Seldom>,
}

impl Complaints {
    /// How often a server calls [`Self::sum_up`], at least.
    pub const SUM_INTERVAL: Duration = Duration::from_secs(60);

    /// The rate limits of a server, which has this name in the log.
    pub fn new(server: &'static str) -> Self {
        let (of_peers, shortages) = (Mutex::default(), Mutex::default());
        Self { server, began: Instant::now(), of_peers, shortages }
    }

    fn of_peers(&self) -> MutexGuard<'_, SeldomOfPeers> {
        self.of_peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Whether a line about a peer may be logged now.
    pub fn line(&self, peer: Peer) -> bool {
        self.of_peers().line(peer, self.now_ms())
    }

    /// If a line about a shortage of descriptors or threads may be logged now, the number of such lines that were left
    /// out since the last one.
    pub fn shortage(&self) -> Option<u64> {
        let mut shortages = self.shortages.lock().unwrap_or_else(PoisonError::into_inner);
        shortages.line(self.now_ms())
    }

    /// Logs how many lines were left out in intervals that have ended.
    pub fn sum_up(&self) {
        self.sum_up_to(self.now_ms());
    }

    fn sum_up_to(&self, now_ms: u64) {
        let mut lines = self.of_peers();
        while let Some((peer, left_out)) = lines.left_out(now_ms) {
            let server = self.server;
            tracing::info!(%peer, left_out, "{server}: more lines like the last ones of this peer");
        }
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        self.sum_up_to(u64::MAX);
    }
}
