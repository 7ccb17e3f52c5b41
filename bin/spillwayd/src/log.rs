//! The log: standard error, which a service manager passes to its journal.

use std::env;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::filter::LevelFilter;

/// Environment variable with the log level: error, warn, info, debug or trace.
const LEVEL: &str = "SPILLWAY_LOG";

/// Starts logging.
pub fn start() {
    let level = env::var(LEVEL).ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    // The journal adds its own timestamps.
    if env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
}

/// Reports why the daemon ends.
pub fn last_words(error: &anyhow::Error) {
    // Without standard error, the exit code is the only report.
    let _ = writeln!(io::stderr(), "spillwayd: {error:#}");
}
