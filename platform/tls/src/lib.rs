//! TLS between hosts: keys and certificates from files, names of clients from theirs.
//!
//! It knows no sockets and no protocol inside. Both sides show a certificate where a server is given an
//! authority for its clients; clients always check the server's.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use webpki::EndEntityCert;

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

/// TLS as a server speaks it.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    config: Arc<ServerConfig>,
}

impl ServerSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Tls`].
    pub fn load(files: &Files, versions: Versions) -> Result<Self, Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions.all())?;
        let builder = match &files.authority {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots(path)?, provider())
                        .build()
                        .map_err(|error| unfit(path, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (chain, key) = own(files)?;
        let mut config = builder.with_single_cert(chain, key)?;
        // A session that is taken up again is not asked for its certificate, however old that is by then.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config) })
    }

    /// One more connection.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn connection(&self) -> Result<ServerConnection, Error> {
        Ok(ServerConnection::new(self.config.clone())?)
    }

    /// What connections are made of, for those who drive them otherwise.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }
}

/// TLS 1.3 as a client speaks it, to one server.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl ClientSettings {
    /// Reads the files. `server` is the DNS name or address that the server's certificate must name; who
    /// vouches for it stands in the file `authority`.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::File`], [`Error::Tls`].
    pub fn load(files: &Files, authority: &Path, server: &str) -> Result<Self, Error> {
        let name = ServerName::try_from(server.to_owned());
        let server = name.map_err(|_| Error::Name(server.to_owned()))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority)?, provider())
            .build()
            .map_err(|error| unfit(authority, &error))?;
        let (chain, key) = own(files)?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(Versions::Tls13.all())?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(chain, key)?;
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), server })
    }

    /// The same keys, for another server.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn to(&self, server: &str) -> Result<Self, Error> {
        let name = ServerName::try_from(server.to_owned());
        let server = name.map_err(|_| Error::Name(server.to_owned()))?;
        Ok(Self { config: Arc::clone(&self.config), server })
    }

    /// What connections are made of, for those who drive them otherwise, and whom they are for.
    pub fn config(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (self.config.clone(), self.server.clone())
    }

    /// One more connection.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn connection(&self) -> Result<ClientConnection, Error> {
        Ok(ClientConnection::new(self.config.clone(), self.server.clone())?)
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

/// The name by which peers know whoever shows the certificate in `path`.
///
/// # Errors
/// [`Error::File`], [`Error::Nameless`].
pub fn own_name(path: &Path) -> Result<String, Error> {
    first_name(&certificates(path)?[0])
}

fn first_name(certificate: &CertificateDer<'_>) -> Result<String, Error> {
    let certificate = EndEntityCert::try_from(certificate).map_err(|_| Error::Nameless)?;
    let name = certificate.valid_dns_names().next().ok_or(Error::Nameless)?;
    Ok(name.to_owned())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The own certificates, and the key of the first.
fn own(files: &Files) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unfit(&files.key, &error))?;
    Ok((certificates(&files.certificate)?, key))
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots.into())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unfit(path, &error));
    let found = found?;
    if found.is_empty() {
        return Err(unfit(path, &"no certificate in it"));
    }
    Ok(found)
}

fn unfit(path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::File { path: path.to_owned(), reason: reason.to_string() }
}
