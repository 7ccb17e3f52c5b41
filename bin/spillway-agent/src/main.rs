//! The agent in a guest.

mod blocks;
mod cli;
mod client;
mod high;
mod hurry;
mod mover;
mod notify;
mod options;
mod overcommit;
mod parse;
mod port;
mod programs;
mod quota;
mod reclaim;
mod rights;
mod run;
mod system;
mod watch;
mod window;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::dispatch().unwrap_or_else(|error| {
        // Without standard error, the exit code is the only report.
        let _ = writeln!(std::io::stderr(), "spillway-agent: {error:#}");
        ExitCode::FAILURE
    })
}
