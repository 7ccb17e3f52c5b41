//! Queries the running agent, for the commands.

use std::io::{self, Write};
use std::process::ExitCode;

use spillway_guests::agent::Status;
use spillway_guests::call::{Call, Reply};
use spillway_types::Size;

use crate::options::{Output, Reach};

/// Sends a request, and prints the reply.
///
/// # Errors
/// The agent can't be reached, or does not reply in time.
pub fn ask(reach: &Reach, call: &Call) -> anyhow::Result<ExitCode> {
    let reply = spillway_guest::ask(&reach.socket, call, spillway_guest::WAIT)?;
    print(reach.output, call, &reply)
}

fn print(output: Output, call: &Call, reply: &Reply) -> anyhow::Result<ExitCode> {
    let (text, refusal) = texts(output, call, reply)?;
    io::stdout().lock().write_all(text.as_bytes())?;
    match refusal {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => {
            writeln!(io::stderr(), "spillway-agent: nothing was granted: {why}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The output; and why nothing was granted, if so.
fn texts(
    output: Output,
    call: &Call,
    reply: &Reply,
) -> serde_json::Result<(String, Option<String>)> {
    let json = || {
        let text = serde_json::to_string_pretty(inner(&serde_json::to_value(reply)?))?;
        Ok::<_, serde_json::Error>(text + "\n")
    };
    match reply {
        Reply::Answer { granted_bytes, why } => {
            let done = if matches!(call, Call::Give { .. }) { "taken" } else { "granted" };
            let text = match output {
                Output::Json => json()?,
                _ if *granted_bytes > 0 => format!("{done}: {}\n", Size(*granted_bytes)),
                _ => String::new(),
            };
            let why = why.as_deref().unwrap_or("the host gave no reason");
            Ok((text, (*granted_bytes == 0).then(|| why.to_owned())))
        }
        Reply::Status { .. } if output == Output::Json => Ok((json()?, None)),
        Reply::Status { host, reserve_bytes, status } => {
            let host = if *host { "there" } else { "not connected" };
            let lines = sizes(*reserve_bytes, status)
                .map(|(name, bytes)| format!("{name:<10} {}\n", Size(bytes)));
            let kills = status.kills;
            Ok((format!("host       {host}\n{}kills      {kills}\n", lines.concat()), None))
        }
    }
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

/// The fields of the reply's only variant.
fn inner(value: &serde_json::Value) -> &serde_json::Value {
    value.as_object().and_then(|object| object.values().next()).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn answer(granted_bytes: u64, why: Option<&str>) -> Reply {
        Reply::Answer { granted_bytes, why: why.map(Into::into) }
    }

    #[test]
    fn a_grant_and_a_refusal_are_told_apart() {
        let (need, give) = (Call::Need { bytes: MIB }, Call::Give { bytes: MIB });
        for (call, reply, text, refusal) in [
            (&need, answer(MIB, None), "granted: 1.0 MiB\n", None),
            (&give, answer(2 * MIB, Some("part")), "taken: 2.0 MiB\n", None),
            (&need, answer(0, Some("dry")), "", Some("dry")),
            (&give, answer(0, None), "", Some("the host gave no reason")),
        ] {
            let expected = (text.to_owned(), refusal.map(str::to_owned));
            assert_eq!(texts(Output::Table, call, &reply).unwrap(), expected);
        }
        let (text, refusal) = texts(Output::Json, &need, &answer(0, Some("dry"))).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["granted_bytes"], 0);
        assert_eq!(refusal.as_deref(), Some("dry"));
    }

    #[test]
    fn a_status_names_each_size() {
        let status = Status {
            total_bytes: 2 * MIB,
            available_bytes: 3 * MIB,
            cached_bytes: 4 * MIB,
            kernel_bytes: 5 * MIB,
            kernel_free_bytes: 6 * MIB,
            offline_bytes: 7 * MIB,
            swap_used_bytes: 8 * MIB,
            kills: 9,
            ..Status::default()
        };
        let reply = Reply::Status { host: true, reserve_bytes: MIB, status };
        let (text, _) = texts(Output::Table, &Call::Status, &reply).unwrap();
        let names = [
            "host",
            "reserve",
            "total",
            "available",
            "cached",
            "kernel",
            "of it free",
            "offline",
            "swap used",
            "kills",
        ];
        let values = ["there"]
            .into_iter()
            .map(str::to_owned)
            .chain((1..=8).map(|mib| format!("{mib}.0 MiB")))
            .chain(["9".to_owned()]);
        let lines = names.iter().zip(values).map(|(name, value)| format!("{name:<10} {value}\n"));
        assert_eq!(text, lines.collect::<String>());
        let (text, _) = texts(Output::Json, &Call::Status, &reply).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["host"], &value["status"]["kills"]), (&true.into(), &9.into()));
    }
}
