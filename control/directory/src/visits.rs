//! Log lines about clients that come and go by themselves.

use std::time::Instant;

use spillway_types::Seldom;

use crate::settings::Who;

/// The lines: at most one a second of each kind, because a peer can invent any number of host names.
#[derive(Debug)]
pub(crate) struct Visits {
    began: Instant,
    come: Seldom,
    gone: Seldom,
}

impl Visits {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), come: Seldom::default(), gone: Seldom::default() }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// A client was added because it connected.
    pub(crate) fn come(&mut self, client: &str, who: &Who) {
        let now_ms = self.now_ms();
        if let Some(others) = self.come.line(now_ms) {
            let setting = if matches!(who, Who::Host(_)) { "hosts" } else { "users" };
            tracing::info!(client, others, "added: it connected, and unnamed.{setting} admits it");
        }
    }

    /// A client was removed because it stayed away.
    pub(crate) fn gone(&mut self, client: &str) {
        let now_ms = self.now_ms();
        if let Some(others) = self.gone.line(now_ms) {
            tracing::info!(client, others, "removed: its connections ended a while ago");
        }
    }
}
