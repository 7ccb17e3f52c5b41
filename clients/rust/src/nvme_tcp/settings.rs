//! Settings of a session, and the options of a URL.

use std::path::PathBuf;

use spillway_wire::auth::Secret;
use spillway_wire::fabrics::NQN_BYTES_MAX;

use super::queue::Digests;
use crate::Error;

/// The subsystem that contains every client's pools.
pub const POOLS_NQN: &str = "nqn.2026-11.io.spillway:pools";

/// Prefix of the name of a host without /etc/nvme/hostnqn.
const HOST_NQN: &str = "nqn.2026-11.io.spillway:host";

/// Settings of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// NVMe Qualified Name of the subsystem.
    pub subsystem: String,
    /// NVMe Qualified Name by which the target knows this client.
    pub host: String,
    /// Distinguishes this session from others with the same host name. A new association ends the old one with the same
    /// id, so no two sessions may share an id.
    pub host_id: [u8; 16],
    /// This host's secret, which the target has too; `None` connects without authentication.
    pub secret: Option<Secret>,
    /// I/O queues, each with its own connection; 1 or more.
    pub io_queues: u16,
    /// Commands in flight on each I/O queue, 2 to 256.
    pub depth: u16,
    /// The digests that the connections use.
    pub digests: Digests,
    /// How long an attempt to connect may take.
    pub connect_timeout_us: u64,
    /// How long one command may take before the target counts as unreachable.
    pub command_timeout_us: u64,
    /// How long a call may take in all, with reconnects and retries.
    pub call_timeout_us: u64,
    /// The target ends the association after this long without a keep alive or other command.
    pub keep_alive_us: u64,
}

impl Settings {
    /// The defaults. A call is answered, or fails, within 5 s.
    pub fn new(host: String, host_id: [u8; 16]) -> Self {
        Self {
            subsystem: POOLS_NQN.to_owned(),
            host,
            host_id,
            secret: None,
            io_queues: 1,
            depth: 128,
            digests: Digests::default(),
            connect_timeout_us: 2_000_000,
            command_timeout_us: 2_000_000,
            call_timeout_us: 5_000_000,
            keep_alive_us: 5_000_000,
        }
    }
}

/// The options of a URL, after `?` and separated by `&`:
///
/// | option | meaning | default |
/// |---|---|---|
/// | `host-nqn=NQN` | the name by which the target knows this client | the content of /etc/nvme/hostnqn, or a name made
/// from the host's name |
/// | `secret-file=PATH` | file with this host's secret, `DHHC-1:...` | none |
/// | `queues=N` | I/O queues, each with its own connection, 1 to 16 | 1 |
/// | `depth=N` | commands in flight on a queue, 2 to 256 | 128 |
/// | `digests=header`, `data`, `both` | the digests that the connections use | none |
/// | `certificate=PATH` | with `nvme+tls`: file with this client's certificate, PEM | |
/// | `key=PATH` | with `nvme+tls`: file with its key | |
/// | `authority=PATH` | with `nvme+tls`: file with the CA certificates that sign the target's | |
/// | `timeout=SECONDS` | how long a call may take, with reconnects, 1 to 3600 | 5 |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The client's name.
    pub host_nqn: Option<String>,
    /// The file with its secret.
    pub secret_file: Option<PathBuf>,
    /// I/O queues.
    pub queues: Option<u16>,
    /// Commands in flight on a queue.
    pub depth: Option<u16>,
    /// The digests that the connections use.
    pub digests: Digests,
    /// The file with this client's certificate.
    pub certificate: Option<PathBuf>,
    /// The file with its key.
    pub key: Option<PathBuf>,
    /// The file with the CA certificates that sign the target's.
    pub authority: Option<PathBuf>,
    /// How long a call may take.
    pub timeout_s: Option<u16>,
}

impl Options {
    /// Parses the text after the `?`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(query: &str) -> Result<Self, &'static str> {
        let mut options = Self::default();
        for option in query.split('&') {
            let (name, value) = option.split_once('=').ok_or("an option looks like name=value")?;
            let number = |range: core::ops::RangeInclusive<u16>| {
                value.parse().ok().filter(|number| range.contains(number))
            };
            match name {
                "host-nqn" if !value.is_empty() && value.len() <= NQN_BYTES_MAX => {
                    options.host_nqn = Some(value.to_owned());
                }
                "host-nqn" => return Err("a host-nqn has 1 to 223 bytes"),
                "secret-file" => options.secret_file = Some(value.into()),
                "certificate" => options.certificate = Some(value.into()),
                "key" => options.key = Some(value.into()),
                "authority" => options.authority = Some(value.into()),
                "queues" => {
                    options.queues = Some(number(1..=16).ok_or("queues is a number from 1 to 16")?);
                }
                "depth" => {
                    options.depth = Some(number(2..=256).ok_or("depth is a number from 2 to 256")?);
                }
                "digests" => {
                    options.digests = match value {
                        "header" => Digests { header: true, data: false },
                        "data" => Digests { header: false, data: true },
                        "both" => Digests { header: true, data: true },
                        _ => return Err("digests is header, data or both"),
                    }
                }
                "timeout" => {
                    let timeout = number(1..=3600).ok_or("timeout is 1 to 3600 seconds")?;
                    options.timeout_s = Some(timeout);
                }
                _ => {
                    return Err(
                        "the options are host-nqn, secret-file, certificate, key, authority, queues, \
                                depth, digests and timeout",
                    );
                }
            }
        }
        Ok(options)
    }

    /// The name by which the target knows this client.
    ///
    /// # Errors
    /// [`Error::Io`] when /etc/nvme/hostnqn exists but can't be read.
    pub fn host_nqn(&self) -> Result<String, Error> {
        if let Some(name) = &self.host_nqn {
            return Ok(name.clone());
        }
        match std::fs::read_to_string("/etc/nvme/hostnqn") {
            Ok(name) => Ok(name.trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let system = rustix::system::uname();
                Ok(format!("{HOST_NQN}:{}", system.nodename().to_string_lossy()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Applies the options to `settings`.
    pub fn apply(&self, settings: &mut Settings) {
        settings.io_queues = self.queues.unwrap_or(settings.io_queues);
        settings.depth = self.depth.unwrap_or(settings.depth);
        settings.digests = self.digests;
        if let Some(timeout_s) = self.timeout_s {
            // Two attempts fit into the time of a call.
            settings.call_timeout_us = u64::from(timeout_s) * 1_000_000;
            settings.command_timeout_us = settings.call_timeout_us * 2 / 5;
            settings.connect_timeout_us = settings.call_timeout_us * 2 / 5;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_set_what_they_name() {
        let options = Options::parse("host-nqn=nqn.x&queues=4&digests=data&timeout=10").unwrap();
        let mut settings = Settings::new(options.host_nqn().unwrap(), [1; 16]);
        options.apply(&mut settings);
        assert_eq!(settings.host, "nqn.x");
        assert_eq!((settings.io_queues, settings.depth), (4, 128));
        assert_eq!(settings.digests, Digests { header: false, data: true });
        assert_eq!(settings.call_timeout_us, 10_000_000);
    }

    #[test]
    fn bad_options_are_told() {
        let wrong = ["", "queues", "queues=0", "depth=1", "digests=some", "timeout=0", "what=1"];
        for query in wrong {
            assert!(Options::parse(query).is_err(), "{query}");
        }
    }
}
