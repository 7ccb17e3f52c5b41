//! Where lines for the operator go: standard error, which a service manager passes to its journal.

use std::env;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::filter::LevelFilter;

/// Environment variable that says what is logged: error, warn, info, debug or trace.
const LEVEL: &str = "SPILLWAY_LOG";

/// Begins to log.
pub fn start() {
    let level = env::var(LEVEL).ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    // The journal has times of its own.
    if env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
}

/// Says why the daemon ends.
pub fn last_words(error: &anyhow::Error) {
    // Without a standard error the exit code alone must do.
    let _ = writeln!(io::stderr(), "spillwayd: {error:#}");
}
