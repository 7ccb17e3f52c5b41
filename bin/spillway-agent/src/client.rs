//! Asks the running agent, for the commands.

use std::io::{self, Write};
use std::process::ExitCode;

use spillway_guests::agent::Status;
use spillway_guests::call::{Call, Reply};
use spillway_types::Size;

use crate::cli::{Output, Reach};

/// Asks, and prints the reply.
///
/// # Errors
/// The agent can't be reached, or does not reply in time.
pub fn ask(reach: &Reach, call: &Call) -> anyhow::Result<ExitCode> {
    let reply = spillway_guest::ask(&reach.socket, call, spillway_guest::WAIT)?;
    print(reach.output, call, &reply)
}

fn print(output: Output, call: &Call, reply: &Reply) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    match reply {
        Reply::Answer { granted_bytes, why } => {
            if output == Output::Json {
                writeln!(
                    stdout,
                    "{}",
                    serde_json::to_string_pretty(inner(&serde_json::to_value(reply)?))?
                )?;
            } else if *granted_bytes > 0 {
                let done = if matches!(call, Call::Give { .. }) { "taken" } else { "granted" };
                writeln!(stdout, "{done}: {}", Size(*granted_bytes))?;
            }
            if *granted_bytes == 0 {
                let why = why.as_deref().unwrap_or("the host does not say why");
                writeln!(io::stderr(), "spillway-agent: nothing was granted: {why}")?;
                return Ok(ExitCode::FAILURE);
            }
        }
        Reply::Status { .. } if output == Output::Json => {
            writeln!(
                stdout,
                "{}",
                serde_json::to_string_pretty(inner(&serde_json::to_value(reply)?))?
            )?;
        }
        Reply::Status { host, reserve_bytes, status } => {
            let host = if *host { "there" } else { "not there" };
            writeln!(stdout, "host       {host}")?;
            for (name, bytes) in sizes(*reserve_bytes, status) {
                writeln!(stdout, "{name:<10} {}", Size(bytes))?;
            }
            writeln!(stdout, "kills      {}", status.kills)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sizes(reserve_bytes: u64, status: &Status) -> [(&'static str, u64); 8] {
    [
        ("reserve", reserve_bytes),
        ("total", status.total_bytes),
        ("available", status.available_bytes),
        ("cached", status.cached_bytes),
        ("kernel", status.kernel_bytes),
        ("of it free", status.kernel_free_bytes),
        ("offline", status.offline_bytes),
        ("swap used", status.swap_used_bytes),
    ]
}

/// The fields of the one variant that a reply is.
fn inner(value: &serde_json::Value) -> &serde_json::Value {
    value.as_object().and_then(|object| object.values().next()).unwrap_or(value)
}
