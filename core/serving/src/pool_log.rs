//! Log lines about the pools that clients make and destroy.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use spillway_types::Seldom;

/// The lines of a server about its clients' pools: at most one a second, because a client can make any number of pools.
/// Dropping it logs how many lines were left out.
#[derive(Debug)]
pub struct PoolLog {
    server: &'static str,
    began: Instant,
    lines: Mutex<Seldom>,
}

impl PoolLog {
    /// The lines of a server, which has this name in the log.
    pub fn new(server: &'static str) -> Self {
        Self { server, began: Instant::now(), lines: Mutex::default() }
    }

    fn may(&self, now_ms: u64) -> Option<u64> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).line(now_ms)
    }

    /// Logs what has happened to which pool. `others` is the number of lines that were left out since the last one.
    pub fn line(&self, what: fmt::Arguments<'_>) {
        if let Some(others) = self.may(self.began.elapsed().as_millis() as u64) {
            tracing::info!(others, "{}: {what}", self.server);
        }
    }
}

impl Drop for PoolLog {
    fn drop(&mut self) {
        if let Some(others @ 1..) = self.may(u64::MAX) {
            tracing::info!(others, "{}: more lines about pools", self.server);
        }
    }
}
