//! URLs of stores.

use std::path::PathBuf;
use std::str::FromStr;

use spillway_store::Config;
use spillway_wire::ring::{WINDOW_PAGE_BYTES, WINDOW_PAGES_MAX};

use crate::Error;
use crate::nvme_tcp::settings::Options;

/// Default capacity of an embedded store, bytes.
const CAPACITY_BYTES: u64 = 64 << 20;

/// The location of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Url {
    /// `embed:` or `embed:?capacity=SIZE`: in this process. The size is in bytes, or has a suffix K,
    /// M, G or T. Default: 64M.
    Embedded {
        /// Most bytes of memory that the store may take.
        capacity_bytes: u64,
    },
    /// `ring:PATH`: in a daemon of this host that listens on the Unix socket PATH.
    Ring {
        /// The socket.
        path: PathBuf,
    },
    /// `guest:`, `guest:PATH`, optionally with `?window=SIZE`: in the daemon on this virtual machine's host, through a
    /// window in this machine's memory that the agent lends (`spillway-agent`, on the Unix socket PATH). The window
    /// holds values almost as long as itself. Its size is 2M (the default) to 18M.
    Guest {
        /// The agent's socket.
        path: PathBuf,
        /// Huge pages of 2 MiB of the window.
        pages: usize,
    },
    /// `nvme+tcp://HOST[:PORT][/SUBSYSTEM][?OPTIONS]`: in a daemon of another host. An IPv6 address
    /// stands in brackets. `nvme+tls` uses TLS 1.3; HOST is then also the name that the target's
    /// certificate must have.
    NvmeTcp {
        /// Whether to use TLS.
        tls: bool,
        /// Name or address.
        host: String,
        /// TCP port. Default: 4420, or 4421 with TLS.
        port: u16,
        /// NVMe Qualified Name of the subsystem, if given.
        subsystem: Option<String>,
        /// The options after the `?`.
        options: Options,
    },
}

/// Default socket of a guest's agent.
const AGENT_SOCKET: &str = "/run/spillway-agent/socket";
/// IANA's port for NVMe over TCP.
const NVME_TCP_PORT: u16 = 4420;
/// Spillway's convention.
const NVME_TLS_PORT: u16 = 4421;

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = if let Some(rest) = text.strip_prefix("embed:") {
            embedded(rest)
        } else if let Some(path) = text.strip_prefix("ring:") {
            ring(path)
        } else if let Some(rest) = text.strip_prefix("guest:") {
            guest(rest)
        } else if let Some(rest) = text.strip_prefix("nvme+tcp://") {
            nvme_tcp(false, rest)
        } else if let Some(rest) = text.strip_prefix("nvme+tls://") {
            nvme_tcp(true, rest)
        } else {
            Err("it begins with no known scheme")
        };
        read.map_err(|why| Error::Url { text: text.to_owned(), why })
    }
}

fn embedded(rest: &str) -> Result<Url, &'static str> {
    let capacity_bytes = match rest.strip_prefix("?capacity=") {
        Some(size) => size_bytes(size).ok_or("the capacity is not a size")?,
        None if rest.is_empty() => CAPACITY_BYTES,
        None => return Err("only ?capacity=SIZE can follow embed:"),
    };
    if let Err(spillway_store::Error::Config(why)) = Config::embedded(capacity_bytes).check() {
        return Err(why);
    }
    Ok(Url::Embedded { capacity_bytes })
}

/// A size: digits, and perhaps one of K, M, G, T for steps of 1024.
fn size_bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        (at, 't' | 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn ring(path: &str) -> Result<Url, &'static str> {
    if path.is_empty() || path.contains('\0') {
        return Err("a path must follow ring:");
    }
    Ok(Url::Ring { path: path.into() })
}

fn guest(rest: &str) -> Result<Url, &'static str> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = if path.is_empty() { AGENT_SOCKET } else { path };
    if path.contains('\0') {
        return Err("the agent's socket is not a path");
    }
    let page = WINDOW_PAGE_BYTES as u64;
    let bytes = match query.strip_prefix("window=") {
        Some(size) => size_bytes(size).ok_or("the window is not a size")?,
        None if query.is_empty() => page,
        None => return Err("only ?window=SIZE can follow"),
    };
    if !(1..=WINDOW_PAGES_MAX as u64 * page).contains(&bytes) {
        return Err("a window has 2M to 18M");
    }
    Ok(Url::Guest { path: path.into(), pages: bytes.div_ceil(page) as usize })
}

fn nvme_tcp(tls: bool, rest: &str) -> Result<Url, &'static str> {
    let (rest, options) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Options::parse(query)?),
        None => (rest, Options::default()),
    };
    let (authority, subsystem) = match rest.split_once('/') {
        Some((authority, "")) => (authority, None),
        Some((authority, name)) => (authority, Some(name.to_owned())),
        None => (rest, None),
    };
    let (host, port) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (host, behind) = inner.split_once(']').ok_or("a bracket is not closed")?;
            match behind.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if behind.is_empty() => (host, None),
                None => return Err("only :PORT can follow the address"),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("it has no host");
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| "the port is not a number from 0 to 65535")?,
        None if tls => NVME_TLS_PORT,
        None => NVME_TCP_PORT,
    };
    let files = [&options.certificate, &options.key, &options.authority];
    if tls && files.iter().any(|file| file.is_none()) {
        return Err("nvme+tls needs certificate=PATH, key=PATH and authority=PATH after the ?");
    }
    if !tls && files.iter().any(|file| file.is_some()) {
        return Err("certificate, key and authority are for nvme+tls");
    }
    Ok(Url::NvmeTcp { tls, host: host.to_owned(), port, subsystem, options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_store_has_a_url() {
        let nvme = |host: &str, port, subsystem: Option<&str>| Url::NvmeTcp {
            tls: false,
            host: host.into(),
            port,
            subsystem: subsystem.map(Into::into),
            options: Options::default(),
        };
        let names = [
            ("embed:", Url::Embedded { capacity_bytes: 64 << 20 }),
            ("embed:?capacity=2G", Url::Embedded { capacity_bytes: 2 << 30 }),
            ("embed:?capacity=1048576", Url::Embedded { capacity_bytes: 1 << 20 }),
            ("ring:/run/spillway.sock", Url::Ring { path: "/run/spillway.sock".into() }),
            ("guest:", Url::Guest { path: AGENT_SOCKET.into(), pages: 1 }),
            ("guest:/run/a?window=3M", Url::Guest { path: "/run/a".into(), pages: 2 }),
            ("guest:?window=18M", Url::Guest { path: AGENT_SOCKET.into(), pages: 9 }),
            ("nvme+tcp://blade", nvme("blade", 4420, None)),
            ("nvme+tcp://blade:99/", nvme("blade", 99, None)),
            ("nvme+tcp://[::1]:99", nvme("::1", 99, None)),
            ("nvme+tcp://[::1]/nqn.2026-11.io.x:y", nvme("::1", 4420, Some("nqn.2026-11.io.x:y"))),
        ];
        let options = Options {
            certificate: Some("c.pem".into()),
            key: Some("k.pem".into()),
            authority: Some("/etc/a.pem".into()),
            ..Options::default()
        };
        let inside_tls =
            Url::NvmeTcp { tls: true, host: "blade".into(), port: 4421, subsystem: None, options };
        let text = "nvme+tls://blade?certificate=c.pem&key=k.pem&authority=/etc/a.pem";
        assert_eq!(text.parse::<Url>().expect(text), inside_tls);
        for (text, url) in names {
            assert_eq!(text.parse::<Url>().expect(text), url);
        }
    }

    #[test]
    fn what_names_no_store_is_told_in_one_line() {
        let wrong = [
            "",
            "embed",
            "embed:64M",
            "embed:?capacity=",
            "embed:?capacity=-1",
            "embed:?capacity=1023K",
            "embed:?capacity=257G",
            "embed:?capacity=99999999999T",
            "ring:",
            "guest:?window=0",
            "guest:?window=19M",
            "guest:?size=2M",
            "nvme+tcp://",
            "nvme+tcp://:4420",
            "nvme+tcp://host:70000",
            "nvme+tcp://host?key=k.pem",
            "nvme+tls://host",
            "nvme+tls://host?certificate=c.pem&key=k.pem",
            "nvme+tcp://host?queues=0",
            "nvme+tcp://[::1",
            "nvme+tcp://[::1]4420",
            "http://host",
        ];
        for text in wrong {
            let error = text.parse::<Url>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("'{text}'")) && !error.contains('\n'), "{error}");
        }
    }
}
