//! TLS between hosts: keys and certificates from files, names of clients from theirs.
//!
//! It knows no sockets and no protocol inside. Both sides show a certificate where a server is given an
//! authority for its clients; clients always check the server's.

#![forbid(unsafe_code)]

mod keys;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use webpki::EndEntityCert;

pub use keys::{Differences, Keys};

static TLS13_ALONE: &[&SupportedProtocolVersion] = &[&TLS13];

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// TLS failed, or its settings make no sense.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A file with keys or certificates can't be used.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing says who vouches for servers.
    #[error("no file says who vouches for servers")]
    NoAuthority,
    /// The certificate names no DNS name.
    #[error("the certificate has no DNS name in its subjectAltName")]
    Nameless,
    /// What the server is called can't stand in a certificate.
    #[error("'{0}' is neither a DNS name nor an address")]
    Name(String),
}

/// Files with keys and certificates, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The own certificate, and those between it and one that peers know.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// Certificates of those who vouch for peers. A server that is given them asks every client for a
    /// certificate; it goes by the first DNS name in its subjectAltName (RFC 9525 has the common name no
    /// longer used).
    pub authority: Option<PathBuf>,
}

/// Which versions a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// 1.3 alone: where both sides are ours.
    Tls13,
    /// 1.2 too.
    Tls12And13,
}

impl Versions {
    const fn all(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Tls13 => TLS13_ALONE,
            Self::Tls12And13 => ALL_VERSIONS,
        }
    }
}

/// TLS as a server speaks it. Clones have the same keys, now and after [`Self::renew`].
#[derive(Clone, Debug)]
pub struct ServerSettings {
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl ServerSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Tls`].
    pub fn load(files: &Files, versions: Versions) -> Result<Self, Error> {
        Self::new(&Keys::read(files)?, versions)
    }

    /// With keys that were read. If they name an authority, every client must show a certificate.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Tls`].
    pub fn new(keys: &Keys, versions: Versions) -> Result<Self, Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions.all())?;
        let builder = match keys.roots()? {
            None => builder.with_no_client_auth(),
            Some((path, roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .build()
                    .map_err(|error| unfit(path, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (chain, key) = keys.own();
        let mut config = builder.with_single_cert(chain, key).map_err(|why| keys.unfit(why))?;
        // A session that is taken up again is not asked for its certificate, however old that is by then.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config))) })
    }

    /// Has new connections use what `new` uses now. Those that there are stay as they are.
    pub fn renew(&self, new: &Self) {
        let config = new.config();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// One more connection.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn connection(&self) -> Result<ServerConnection, Error> {
        Ok(ServerConnection::new(self.config())?)
    }

    /// What the next connection is made of, for those who drive it otherwise.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// TLS 1.3 as a client speaks it, to one server. Clones, and those [`to`](Self::to) other servers, have the same
/// keys, now and after [`Self::renew`].
#[derive(Clone, Debug)]
pub struct ClientSettings {
    config: Arc<RwLock<Arc<ClientConfig>>>,
    server: ServerName<'static>,
}

impl ClientSettings {
    /// Reads the files. `server` is the DNS name or address that the server's certificate must name; who
    /// vouches for it stands in the file `authority`.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::File`], [`Error::Tls`].
    pub fn load(files: &Files, authority: &Path, server: &str) -> Result<Self, Error> {
        let files = Files { authority: Some(authority.to_owned()), ..files.clone() };
        Self::new(&Keys::read(&files)?, server)
    }

    /// With keys that were read, whose authority vouches for servers too.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NoAuthority`], [`Error::File`], [`Error::Tls`].
    pub fn new(keys: &Keys, server: &str) -> Result<Self, Error> {
        let server = server_name(server)?;
        let (path, roots) = keys.roots()?.ok_or(Error::NoAuthority)?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| unfit(path, &error))?;
        let (chain, key) = keys.own();
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(Versions::Tls13.all())?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(|why| keys.unfit(why))?;
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config))), server })
    }

    /// The same keys, for another server.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn to(&self, server: &str) -> Result<Self, Error> {
        Ok(Self { config: Arc::clone(&self.config), server: server_name(server)? })
    }

    /// Has new connections use the keys that `new` uses now. Those that there are stay as they are.
    pub fn renew(&self, new: &Self) {
        let config = new.current();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn current(&self) -> Arc<ClientConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the next connection is made of, for those who drive it otherwise, and whom it is for.
    pub fn config(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (self.current(), self.server.clone())
    }

    /// One more connection.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn connection(&self) -> Result<ClientConnection, Error> {
        Ok(ClientConnection::new(self.current(), self.server.clone())?)
    }
}

/// The name that a client's certificate gives it; none when it showed no certificate.
///
/// # Errors
/// [`Error::Nameless`].
pub fn name_of(connection: &ServerConnection) -> Result<Option<String>, Error> {
    let Some([first, ..]) = connection.peer_certificates() else { return Ok(None) };
    first_name(first).map(Some)
}

fn first_name(certificate: &CertificateDer<'_>) -> Result<String, Error> {
    let certificate = EndEntityCert::try_from(certificate).map_err(|_| Error::Nameless)?;
    let name = certificate.valid_dns_names().next().ok_or(Error::Nameless)?;
    Ok(name.to_owned())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn server_name(server: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(server.to_owned()).map_err(|_| Error::Name(server.to_owned()))
}

fn unfit(path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::File { path: path.to_owned(), reason: reason.to_string() }
}
