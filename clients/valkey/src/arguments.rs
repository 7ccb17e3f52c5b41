//! The arguments of `loadmodule`: names and values in turn.

use std::str::FromStr;
use std::time::Duration;

use spillway_client::{Peer, Url};
use spillway_types::parse_size;

/// The parsed arguments of `loadmodule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The daemon of this host, or the agent of this guest.
    pub peer: Peer,
    /// Shorter values stay in the server.
    pub min_bytes: u64,
    /// How long the server waits for an answer of the store.
    pub deadline: Duration,
    /// Most bytes of deleted values that the store keeps for a child that saves. Beyond that, no more values move to
    /// the store.
    pub child_limit_bytes: u64,
    /// Whether unmodified clients use the store.
    pub transparent: bool,
    /// The percentage of `maxmemory` above which strings of unmodified clients move to the store. 0: always, even
    /// without a limit.
    pub spill_from_percent: u8,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            peer: Peer::Daemon("/run/spillway/spillway.sock".into()),
            min_bytes: 2048,
            deadline: Duration::from_secs(1),
            child_limit_bytes: 1 << 30,
            transparent: false,
            spill_from_percent: 85,
        }
    }
}

impl Arguments {
    /// Parses names and values.
    ///
    /// # Errors
    /// A line that says what is wrong.
    pub fn parse(texts: &[&[u8]]) -> Result<Self, String> {
        let mut arguments = Self::default();
        for pair in texts.chunks(2) {
            let name = String::from_utf8_lossy(pair[0]);
            let Some(value) = pair.get(1) else { return Err(format!("{name} has no value")) };
            let value = String::from_utf8_lossy(value);
            match &*name {
                "url" => arguments.peer = peer(&value)?,
                "min-bytes" => arguments.min_bytes = size(&name, &value)?,
                "child-limit" => arguments.child_limit_bytes = size(&name, &value)?,
                "deadline-ms" => arguments.deadline = deadline(&value)?,
                "transparent" => arguments.transparent = yes_or_no(&name, &value)?,
                "spill-from" => arguments.spill_from_percent = percent(&value)?,
                _ => {
                    return Err(format!(
                        "there is no argument {name}: url, min-bytes, child-limit, deadline-ms, transparent and spill-from are known"
                    ));
                }
            }
        }
        Ok(arguments)
    }
}

/// What a URL names.
fn peer(url: &str) -> Result<Peer, String> {
    match Url::from_str(url) {
        Ok(Url::Ring { path }) => Ok(Peer::Daemon(path)),
        Ok(Url::Guest { path, pages }) => Ok(Peer::Agent { path, pages }),
        Ok(_) => Err(format!(
            "url {url}: the module needs a daemon of this host, as ring:/run/spillway/spillway.sock, or of the host of \
             this guest, as guest:"
        )),
        Err(error) => Err(format!("url: {error}")),
    }
}

fn size(name: &str, value: &str) -> Result<u64, String> {
    parse_size(value).map_err(|error| format!("{name} {value}: {error}"))
}

fn yes_or_no(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{name} {value}: yes or no is needed")),
    }
}

fn percent(value: &str) -> Result<u8, String> {
    match value.strip_suffix('%').unwrap_or(value).parse() {
        Ok(percent @ 0..=99) => Ok(percent),
        _ => Err(format!("spill-from {value}: a percentage of maxmemory from 0 to 99 is needed")),
    }
}

fn deadline(value: &str) -> Result<Duration, String> {
    match value.parse() {
        Ok(ms @ 1..=60_000) => Ok(Duration::from_millis(ms)),
        _ => Err(format!("deadline-ms {value}: a number from 1 to 60000 is needed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(&texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn all_arguments_are_read() {
        let read = parse(&[
            "url",
            "ring:/tmp/s.sock",
            "min-bytes",
            "1",
            "deadline-ms",
            "250",
            "child-limit",
            "64M",
            "transparent",
            "yes",
            "spill-from",
            "70%",
        ]);
        assert_eq!(
            read,
            Ok(Arguments {
                peer: Peer::Daemon("/tmp/s.sock".into()),
                min_bytes: 1,
                deadline: Duration::from_millis(250),
                child_limit_bytes: 64 << 20,
                transparent: true,
                spill_from_percent: 70,
            })
        );
        assert_eq!(parse(&[]), Ok(Arguments::default()));
        let in_a_guest = parse(&["url", "guest:/run/a?window=4M"]).unwrap();
        assert_eq!(in_a_guest.peer, Peer::Agent { path: "/run/a".into(), pages: 2 });
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (texts, part) in [
            (&["url"][..], "url has no value"),
            (&["url", "nonsense"], "names no store"),
            (&["url", "embed:"], "daemon of this host"),
            (&["url", "nvme+tcp://blade"], "daemon of this host"),
            (&["min-bytes", "-1"], "min-bytes -1"),
            (&["deadline-ms", "0"], "1 to 60000"),
            (&["transparent", "maybe"], "yes or no"),
            (&["spill-from", "100"], "0 to 99"),
            (&["colour", "red"], "no argument colour"),
        ] {
            let line = parse(texts).unwrap_err();
            assert!(line.contains(part) && !line.contains('\n'), "{line}");
        }
    }
}
