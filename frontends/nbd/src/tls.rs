//! TLS: the server's certificate, and names of clients from theirs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use webpki::EndEntityCert;

use crate::error::Error;

/// Files with keys and certificates, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and one that clients know.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// Certificates of those who vouch for clients. When given, every client that speaks TLS must
    /// show a certificate, and goes by the first DNS name in its subjectAltName (RFC 9525 has the
    /// common name no longer used).
    pub client_authority: Option<PathBuf>,
}

/// TLS as a server speaks it: versions 1.2 and 1.3.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    config: Arc<ServerConfig>,
}

impl TlsSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::TlsFile`], [`Error::Tls`].
    pub fn load(files: &TlsFiles) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let builder = match &files.client_authority {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .build()
                    .map_err(|error| unfit(path, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| unfit(&files.key, &e))?;
        let config = builder.with_single_cert(certificates(&files.certificate)?, key)?;
        Ok(Self { config: Arc::new(config) })
    }

    /// One more connection.
    pub(crate) fn connection(&self) -> Result<ServerConnection, Error> {
        Ok(ServerConnection::new(self.config.clone())?)
    }
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
    Error::TlsFile { path: path.to_owned(), reason: reason.to_string() }
}

/// The name that a client's certificate gives it; none when it showed no certificate.
///
/// # Errors
/// [`Error::Nameless`].
pub fn name_of(connection: &ServerConnection) -> Result<Option<String>, Error> {
    let Some([first, ..]) = connection.peer_certificates() else { return Ok(None) };
    let certificate = EndEntityCert::try_from(first).map_err(|_| Error::Nameless)?;
    let name = certificate.valid_dns_names().next().ok_or(Error::Nameless)?;
    Ok(Some(name.to_owned()))
}
