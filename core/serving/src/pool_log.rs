//! Log lines about the pools that clients make and destroy.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use spillway_types::{Access, ClientId, Seldom};

/// The lines of a server about its clients' pools: at most one a second, because a client can make any number of pools.
/// Dropping it logs how many lines were left out.
pub struct PoolLog {
    server: &'static str,
    access: Arc<dyn Access>,
    began: Instant,
    lines: Mutex<Seldom>,
}

impl fmt::Debug for PoolLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolLog").field("server", &self.server).finish_non_exhaustive()
    }
}

impl PoolLog {
    /// The lines of a server, which has this name in the log. `access` knows the names of its clients.
    pub fn new(server: &'static str, access: Arc<dyn Access>) -> Self {
        Self { server, access, began: Instant::now(), lines: Mutex::default() }
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

    /// [`Self::line`] about a pool of a client.
    pub fn line_of(&self, client: ClientId, what: fmt::Arguments<'_>) {
        self.line(format_args!("client {}: {what}", Name(self, client)));
    }
}

/// A client's name. It is asked for only when a line is written.
struct Name<'a>(&'a PoolLog, ClientId);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(log, client) = self;
        let mut told = None;
        log.access.name(*client, &mut |name| told = Some(f.write_str(name)));
        told.unwrap_or_else(|| write!(f, "#{}", client.0))
    }
}

impl Drop for PoolLog {
    fn drop(&mut self) {
        if let Some(others @ 1..) = self.may(u64::MAX) {
            tracing::info!(others, "{}: more lines about pools", self.server);
        }
    }
}
