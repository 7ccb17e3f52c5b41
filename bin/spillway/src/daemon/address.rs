//! Where a daemon's HTTP interface is, and how it is reached: by a Unix socket, TCP, or TLS.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use rustls::{CertificateError, InvalidMessage};
use spillway_tls::{Authorities, ClientSettings};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::refusal::Refusal;

/// Longest time until a connection is there, TLS included.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The ports of addresses without one.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A stream to the daemon.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// A daemon's HTTP interface.
pub struct ApiAddress {
    /// As it was given.
    address: String,
    /// The option for such an address: `--api` or `--to`.
    option: &'static str,
    kind: Kind,
}

enum Kind {
    Socket,
    /// Host and port.
    Http(String),
    Https {
        /// Host and port.
        host: String,
        tls: ClientSettings,
        /// The file with the authorities; none if they are the system's.
        authorities: Option<PathBuf>,
    },
}

impl ApiAddress {
    /// Understands an address, which `from` gave. `authorities` is the file with those that sign the daemon's
    /// certificate; none means the system's.
    ///
    /// # Errors
    /// It is no such address, or the file can't be used.
    pub fn new(from: &str, address: &str, authorities: Option<PathBuf>) -> Result<Self, Refusal> {
        let kind = match address.split_once("://") {
            None => Kind::Socket,
            Some(("http", _)) => Kind::Http(http(from, address)?),
            Some(("https", _)) => https(from, address, authorities)?,
            Some((scheme, _)) => {
                return Err(Refusal::usage(format!(
                    "{from} {address}: {scheme}:// does not work; give the path of the daemon's api.sock, http://HOST:PORT \
                     or https://HOST:PORT; or forward another host's api.sock: ssh -L \
                     DIR/api.sock:/run/spillway/api.sock HOST"
                )));
            }
        };
        let option = if from == "--to" { "--to" } else { "--api" };
        Ok(Self { address: address.to_owned(), option, kind })
    }

    /// As it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What requests name as their host.
    pub fn host(&self) -> &str {
        match &self.kind {
            Kind::Socket => "localhost",
            Kind::Http(host) | Kind::Https { host, .. } => host,
        }
    }

    /// Connects. A `secret` connection, which will carry a token, goes to another host only inside TLS.
    ///
    /// # Errors
    /// One line that says what to do.
    pub async fn connect(&self, secret: bool) -> Result<Box<dyn Wire>, Refusal> {
        let late = |_| Err(self.away(&format!("no answer within {CONNECT_MAX:?}")));
        timeout(CONNECT_MAX, self.wire(secret)).await.unwrap_or_else(late)
    }

    async fn wire(&self, secret: bool) -> Result<Box<dyn Wire>, Refusal> {
        let refused = |error: io::Error| self.away(&format!("{error}; {}", cure(error.kind())));
        match &self.kind {
            Kind::Socket => {
                Ok(Box::new(UnixStream::connect(&self.address).await.map_err(refused)?))
            }
            Kind::Http(host) => {
                let found: Vec<_> = lookup_host(host).await.map_err(refused)?.collect();
                if secret && !stay_here(&found) {
                    return Err(self.in_the_clear());
                }
                // Not the name again: it could have another address by now.
                Ok(Box::new(TcpStream::connect(&found[..]).await.map_err(refused)?))
            }
            Kind::Https { host, tls, authorities } => {
                let stream = TcpStream::connect(host).await.map_err(refused)?;
                let (config, name) = tls.config();
                let connected = TlsConnector::from(config).connect(name, stream).await;
                let failed = |error| self.away(&why(&error, authorities.as_ref()));
                Ok(Box::new(connected.map_err(failed)?))
            }
        }
    }

    /// No daemon answers.
    fn away(&self, why: &str) -> Refusal {
        Refusal::unreachable(format!("can't reach a daemon at {}: {why}", self.address))
    }

    /// Others on the network could read the token.
    fn in_the_clear(&self) -> Refusal {
        Refusal::usage(format!(
            "the token is not sent to {}: http does not encrypt, and others on the network could read it; use https://, or \
             forward that host's api.sock: ssh -N -L DIR/api.sock:/run/spillway/api.sock HOST, and {option} DIR/api.sock; \
             or give {option}-guarded if something else encrypts",
            self.address,
            option = self.option,
        ))
    }
}

/// Whether bytes stay on this host, whichever of a name's addresses they go to.
fn stay_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

/// Host and port of an http address.
fn http(from: &str, address: &str) -> Result<String, Refusal> {
    let wrong = || Refusal::usage(format!("{from} {address}: an address is http://HOST:PORT"));
    let (name, port) = host_and_port(address, HTTP_PORT).ok_or_else(wrong)?;
    Ok(format!("{name}:{port}"))
}

fn https(from: &str, address: &str, file: Option<PathBuf>) -> Result<Kind, Refusal> {
    let Some((name, port)) = host_and_port(address, HTTPS_PORT) else {
        return Err(Refusal::usage(format!("{from} {address}: an address is https://HOST:PORT")));
    };
    let host = format!("{name}:{port}");
    let authorities = match &file {
        Some(path) => Authorities::read(path),
        None => Authorities::of_system(),
    };
    let authorities = authorities.map_err(|error| {
        Refusal::usage(format!(
            "{from} {address}: {error}; name the file of the authority that signed the daemon's certificate with \
             --api-ca or SPILLWAY_API_CA"
        ))
    })?;
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let tls = ClientSettings::anonymous(authorities, bare)
        .map_err(|error| Refusal::usage(format!("{from} {address}: {error}")))?;
    Ok(Kind::Https { host, tls, authorities: file })
}

/// Of an address, in which the port may be missing.
fn host_and_port(address: &str, usual: u16) -> Option<(String, u16)> {
    let uri = address.parse::<Uri>().ok()?;
    let authority = uri.authority()?;
    let name = authority.host();
    let port = match authority.port_u16() {
        None if authority.as_str() == name => usual,
        port => port?,
    };
    let is_whole = matches!(uri.path(), "" | "/") && uri.query().is_none();
    (is_whole && !authority.as_str().contains('@')).then(|| (name.to_owned(), port))
}

/// What to do if a connection is refused.
const fn cure(why: ErrorKind) -> &'static str {
    match why {
        ErrorKind::PermissionDenied => "run the command as root or as the daemon's user",
        _ => "start one with spillway serve, or name it with --api",
    }
}

/// Why there is no TLS, and what to do about it.
fn why(error: &io::Error, authorities: Option<&PathBuf>) -> String {
    use CertificateError as Certificate;
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(wrong)) => match wrong {
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                "its certificate is for another name: use a name that is in the certificate".to_owned()
            }
            Certificate::UnknownIssuer | Certificate::BadSignature => match authorities {
                Some(file) => format!("no authority in {} signed its certificate", file.display()),
                None => "no authority that this host knows signed its certificate: name the file of the one that did \
                         with --api-ca or SPILLWAY_API_CA"
                    .to_owned(),
            },
            Certificate::Expired | Certificate::ExpiredContext { .. } => {
                "its certificate has expired: put a new one into the files of listen.tls_certificate and tls_key there, \
                 and run spillway reload"
                    .to_owned()
            }
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "its certificate is not valid yet: compare the clocks of both hosts".to_owned()
            }
            _ => format!("its certificate is not valid: {error}"),
        },
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "this port does not speak TLS: use http:// in the address, or the port of listen.api_tls".to_owned()
        }
        None if error.kind() == ErrorKind::UnexpectedEof => {
            "it closed the connection before TLS began: is this the port of listen.api_tls?".to_owned()
        }
        _ => format!("TLS failed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_asked_is_an_address() {
        for good in ["http://127.0.0.1:8430", "/run/spillway/api.sock", "api.sock"] {
            assert_eq!(ApiAddress::new("--api", good, None).unwrap().address(), good);
        }
        for bad in [
            "unix:///run/spillway/api.sock",
            "HTTPS://x",
            "http://",
            "http://127.0.0.1:8430/v1",
            "http://127.0.0.1:84300",
            "http://me@127.0.0.1:8430",
        ] {
            let refusal = ApiAddress::new("--api", bad, None).err().unwrap();
            let line = refusal.to_string();
            assert!(line.contains(bad) && line.contains("http://HOST:PORT"), "{line}");
            assert_eq!((line.lines().count(), refusal.code()), (1, 2));
        }
    }

    #[test]
    fn a_daemon_that_runs_is_not_to_be_started() {
        assert!(cure(ErrorKind::NotFound).contains("spillway serve"));
        assert!(!cure(ErrorKind::PermissionDenied).contains("spillway serve"));
    }

    #[test]
    fn an_address_without_a_port_has_the_usual_one() {
        for (address, host) in [
            ("http://127.0.0.1", "127.0.0.1:80"),
            ("http://[::1]", "[::1]:80"),
            ("http://blade:8430/", "blade:8430"),
        ] {
            assert_eq!(ApiAddress::new("--api", address, None).unwrap().host(), host);
        }
    }

    #[test]
    fn bytes_stay_here_only_if_each_address_of_the_name_is_of_this_host() {
        let here = ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.2]:1"].map(|it| it.parse().unwrap());
        assert!(stay_here(&here));
        for beyond in ["192.0.2.1:1", "[fd00::1]:1", "[::ffff:192.0.2.1]:1"] {
            let beyond = beyond.parse().unwrap();
            assert!(!stay_here(&[beyond]));
            assert!(!stay_here(&[here[0], beyond]) && !stay_here(&[beyond, here[0]]), "{beyond}");
        }
    }
}
