//! TLS between hosts: keys and certificates from files, names of clients from their certificates.
//!
//! The crate knows neither sockets nor the protocol inside. A client always checks the server's certificate. A
//! server with an authority for clients checks theirs too.

#![forbid(unsafe_code)]

mod authorities;
mod keys;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use webpki::EndEntityCert;

pub use authorities::Authorities;
pub use keys::{Differences, Keys};

static TLS13_ALONE: &[&SupportedProtocolVersion] = &[&TLS13];

/// The reason why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// TLS failed, or its settings are invalid.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A file with keys or certificates can't be used.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// This host has no file with authorities where systems usually have it.
    #[error("this host has no file with certificate authorities")]
    NoSystemAuthorities,
    /// No file with the authorities for servers is given.
    #[error("no file with certificate authorities for servers is given")]
    NoAuthority,
    /// The certificate names no DNS name.
    #[error("the certificate has no DNS name in its subjectAltName")]
    Nameless,
    /// The server's name can't occur in a certificate.
    #[error("'{0}' is neither a DNS name nor an address")]
    Name(String),
}

/// Files with keys and certificates, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The own certificate, followed by the intermediate ones up to an authority that peers know.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// Certificates of the authorities for peers. A server with this file requires a certificate of every client. The
    /// client's name is the first DNS name in its subjectAltName (RFC 9525 no longer uses the common name).
    pub authority: Option<PathBuf>,
}

/// The versions of TLS that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Only 1.3: for protocols between Spillway's own programs.
    Tls13,
    /// 1.2 and 1.3.
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

/// TLS settings of a server. Clones share the keys, also after [`Self::renew`].
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

    /// Uses keys that were read. If they include an authority, every client must present a certificate.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Tls`].
    pub fn new(keys: &Keys, versions: Versions) -> Result<Self, Error> {
        Self::build(keys, versions, keys.roots()?)
    }

    /// Uses keys that were read. No client is asked for a certificate, also if the keys include an authority.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn of_any_client(keys: &Keys, versions: Versions) -> Result<Self, Error> {
        Self::build(keys, versions, None)
    }

    fn build(
        keys: &Keys,
        versions: Versions,
        roots: Option<(&Path, Arc<RootCertStore>)>,
    ) -> Result<Self, Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions.all())?;
        let builder = match roots {
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
        // A resumed session would not have to present its certificate again, even if that has expired.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config))) })
    }

    /// Makes new connections use the present settings of `new`. Existing connections do not change.
    pub fn renew(&self, new: &Self) {
        let config = new.config();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// A new connection.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn connection(&self) -> Result<ServerConnection, Error> {
        Ok(ServerConnection::new(self.config())?)
    }

    /// The configuration of the next connection, for other TLS drivers.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// TLS settings of a client of one server: 1.3, or also 1.2 for [`Self::anonymous`]. Clones, and settings for other servers made by [`Self::to`], share the
/// keys, also after [`Self::renew`].
#[derive(Clone, Debug)]
pub struct ClientSettings {
    config: Arc<RwLock<Arc<ClientConfig>>>,
    server: ServerName<'static>,
}

impl ClientSettings {
    /// Reads the files. `server` is the DNS name or address that the server's certificate must contain. The file
    /// `authority` holds the authorities for that certificate.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::File`], [`Error::Tls`].
    pub fn load(files: &Files, authority: &Path, server: &str) -> Result<Self, Error> {
        let files = Files { authority: Some(authority.to_owned()), ..files.clone() };
        Self::new(&Keys::read(&files)?, server)
    }

    /// Uses keys that were read. Their authority signs servers' certificates too.
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

    /// For a client without a certificate, whose servers can be others than Spillway's own.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Tls`].
    pub fn anonymous(authorities: Authorities, server: &str) -> Result<Self, Error> {
        let server = server_name(server)?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(Versions::Tls12And13.all())?
            .with_root_certificates(authorities.0)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config))), server })
    }

    /// The same settings for another server.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn to(&self, server: &str) -> Result<Self, Error> {
        Ok(Self { config: Arc::clone(&self.config), server: server_name(server)? })
    }

    /// Makes new connections use the present keys of `new`. Existing connections do not change.
    pub fn renew(&self, new: &Self) {
        let config = new.current();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn current(&self) -> Arc<ClientConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration of the next connection and the server's name, for other TLS drivers.
    pub fn config(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (self.current(), self.server.clone())
    }

    /// A new connection.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn connection(&self) -> Result<ClientConnection, Error> {
        Ok(ClientConnection::new(self.current(), self.server.clone())?)
    }
}

/// The client's name from its certificate: the first DNS name. None if it presented no certificate.
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
