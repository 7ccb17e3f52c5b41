//! Log lines about clients that come and go by themselves.

use std::mem;
use std::time::Instant;

use spillway_types::Seldom;

use crate::settings::Who;

/// The lines: at most one a second of each kind, because a peer can invent any number of host names. They wait here
/// until the registry's lock is released, because whoever reads the log may hold it up.
#[derive(Debug)]
pub(crate) struct Visits {
    began: Instant,
    come: Seldom,
    gone: Seldom,
    lines: Vec<Line>,
}

/// A line about a client, and how many like it were left out before.
#[derive(Debug)]
pub(crate) struct Line {
    client: String,
    /// The setting that admits it; none if it has gone.
    setting: Option<&'static str>,
    others: u64,
}

impl Visits {
    pub(crate) fn new() -> Self {
        let (come, gone) = Default::default();
        Self { began: Instant::now(), come, gone, lines: Vec::new() }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// A client was added because it connected.
    pub(crate) fn come(&mut self, client: &str, who: &Who) {
        let now_ms = self.now_ms();
        if let Some(others) = self.come.line(now_ms) {
            let setting = if matches!(who, Who::Host(_)) { "hosts" } else { "users" };
            self.lines.push(Line { client: client.to_owned(), setting: Some(setting), others });
        }
    }

    /// A client was removed because it stayed away.
    pub(crate) fn gone(&mut self, client: &str) {
        let now_ms = self.now_ms();
        if let Some(others) = self.gone.line(now_ms) {
            self.lines.push(Line { client: client.to_owned(), setting: None, others });
        }
    }

    /// Takes the lines that wait.
    pub(crate) fn take(&mut self) -> Vec<Line> {
        mem::take(&mut self.lines)
    }
}

impl Line {
    /// Writes it. The caller has released the registry's lock.
    pub(crate) fn log(self) {
        let Self { client, setting, others } = self;
        match setting {
            Some(setting) => {
                tracing::info!(
                    client,
                    others,
                    "added: it connected, and unnamed.{setting} admits it"
                );
            }
            None => tracing::info!(client, others, "removed: its connections ended a while ago"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_clients_that_go_leave_out_none_about_clients_that_come() {
        let mut visits = Visits::new();
        visits.come("a", &Who::User(1));
        visits.gone("a");
        let later_ms = visits.now_ms() + Seldom::INTERVAL_MS;
        assert_eq!((visits.come.line(later_ms), visits.gone.line(later_ms)), (Some(0), Some(0)));
        let mut visits = Visits::new();
        visits.gone("a");
        let at_once_ms = 0;
        assert_eq!(visits.come.line(at_once_ms), Some(0), "a line of its own");
        assert_eq!(visits.gone.line(at_once_ms), None);
    }
}
