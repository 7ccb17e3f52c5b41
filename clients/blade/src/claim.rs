//! Claims a pool on a blade for a run, and releases it.

use std::fs;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use spillway_client::nvme_tcp::settings::Options;
use spillway_client::{PoolSpec, Store, Url};
use spillway_tiers::blade::Carrier;

use crate::{Error, carrier, is_directory};

/// A run's pool on a blade, and what its processes need to reach it.
#[derive(Debug)]
pub struct Claim {
    /// The complete address, without a name that needs to be resolved.
    pub address: String,
    /// The secret by which this host authenticates.
    pub secret: Option<String>,
    /// The identity of the run's pool; 0 for a directory.
    pub identity: u128,
    /// This process's own transport.
    pub carrier: Box<dyn Carrier>,
    /// A connection that lives as long as the claim, so that the daemon does not consider the run
    /// gone before its first page arrives.
    _presence: Option<Presence>,
}

struct Presence(#[expect(dead_code, reason = "it is only held")] Box<dyn Store>);

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Presence")
    }
}

/// Connects to the blade at `text`, a URL or a directory, and creates a pool there. This may start a
/// thread that keeps the connection alive; the thread inherits the caller's signal mask.
///
/// # Errors
/// The text is invalid, or the blade can't be used. The message is one line for the user.
pub fn claim(text: &str, timeout: Duration) -> Result<Claim, Error> {
    if is_directory(text) {
        let path = fs::canonicalize(Path::new(text))
            .map_err(|source| Error::Directory { path: text.to_owned(), source })?;
        let address = path.display().to_string();
        let carrier = carrier(&address, None, 0, timeout)?;
        return Ok(Claim { address, secret: None, identity: 0, carrier, _presence: None });
    }
    let url: Url = text.parse()?;
    let (address, secret) = match &url {
        Url::Embedded { .. } => return Err(Error::Embedded(text.to_owned())),
        Url::Guest { .. } => return Err(Error::Guest(text.to_owned())),
        Url::Ring { path } => {
            let path = fs::canonicalize(path).map_err(|source| unreachable(text, source))?;
            (format!("ring:{}", path.display()), None)
        }
        Url::NvmeTcp { tls: true, .. } => return Err(Error::Tls(text.to_owned())),
        Url::NvmeTcp { host, port, subsystem, options, .. } => {
            let address = reachable(text, host, *port, timeout)?;
            (complete(address, subsystem.as_deref(), options)?, secret(options)?)
        }
    };
    let store = spillway_client::open(text)?;
    let identity = make_pool(&*store, text)?;
    let carrier = carrier(&address, secret.as_deref(), identity, timeout)?;
    Ok(Claim { address, secret, identity, carrier, _presence: Some(Presence(store)) })
}

/// Creates a pool and returns its identity.
fn make_pool(store: &dyn Store, text: &str) -> Result<u128, Error> {
    let pool = store.open_pool(PoolSpec::PERSISTENT)?;
    let pools = store.pools()?;
    let made = pools.iter().find(|info| info.pool == pool);
    Ok(made.ok_or_else(|| Error::Unlisted(text.to_owned()))?.identity)
}

fn unreachable(text: &str, source: std::io::Error) -> Error {
    spillway_client::Error::Connect { peer: text.to_owned(), source }.into()
}

/// The first address of a host that accepts a connection.
fn reachable(text: &str, host: &str, port: u16, timeout: Duration) -> Result<SocketAddr, Error> {
    let addresses = (host, port).to_socket_addrs().map_err(|source| unreachable(text, source))?;
    let mut last = std::io::ErrorKind::NotFound.into();
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(_) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(unreachable(text, last))
}

/// The blade's URL with everything that a process of the run can't find out by itself.
fn complete(
    address: SocketAddr,
    subsystem: Option<&str>,
    options: &Options,
) -> Result<String, Error> {
    let mut url = format!("nvme+tcp://{address}/{}?", subsystem.unwrap_or_default());
    url += &format!("host-nqn={}", options.host_nqn()?);
    if let Some(queues) = options.queues {
        url += &format!("&queues={queues}");
    }
    if let Some(depth) = options.depth {
        url += &format!("&depth={depth}");
    }
    match (options.digests.header, options.digests.data) {
        (true, true) => url += "&digests=both",
        (true, false) => url += "&digests=header",
        (false, true) => url += "&digests=data",
        (false, false) => {}
    }
    Ok(url)
}

fn secret(options: &Options) -> Result<Option<String>, Error> {
    let Some(path) = &options.secret_file else { return Ok(None) };
    let text = fs::read_to_string(path).map_err(|error| spillway_client::Error::Secret {
        path: path.clone(),
        why: error.to_string(),
    })?;
    Ok(Some(text.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_address_is_a_url_that_means_the_same() {
        let options = Options::parse("host-nqn=nqn.x&queues=2&depth=64&digests=data").unwrap();
        for address in ["127.0.0.1:4420", "[::1]:99"] {
            let socket: SocketAddr = address.parse().unwrap();
            let url = complete(socket, Some("nqn.s"), &options).unwrap();
            let parsed: Url = url.parse().unwrap();
            let expected = Url::NvmeTcp {
                tls: false,
                host: socket.ip().to_string(),
                port: socket.port(),
                subsystem: Some("nqn.s".into()),
                options: options.clone(),
            };
            assert_eq!(parsed, expected, "{url}");
        }
    }

    #[test]
    fn what_can_not_be_a_blade_is_one_line() {
        for text in ["embed:", "nvme+tcp://", "ring:/no/such/socket", "/no/such/directory"] {
            let line = claim(text, Duration::from_millis(100)).unwrap_err().to_string();
            assert!(!line.contains('\n') && line.contains(text), "{line}");
        }
    }

    #[test]
    fn a_blade_that_nobody_serves_is_told() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let text = format!("nvme+tcp://{}", free.local_addr().unwrap());
        drop(free);
        let line = claim(&text, Duration::from_millis(100)).unwrap_err().to_string();
        assert!(line.contains(&text) && line.contains("refused"), "{line}");
    }
}
