//! The authorities that a client without keys of its own trusts.

use std::env;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;

use crate::keys::certificates;
use crate::{Error, unfit};

/// The variable that names another file than the system's, as for OpenSSL.
const FILE_VARIABLE: &str = "SSL_CERT_FILE";
/// Where systems have their authorities in one file.
const SYSTEM_FILES: [&str; 5] = [
    // Debian, Ubuntu, Arch, Alpine.
    "/etc/ssl/certs/ca-certificates.crt",
    // Fedora, RHEL.
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    // openSUSE.
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificates of authorities that sign servers' certificates.
#[derive(Clone, Debug)]
pub struct Authorities(pub(crate) RootCertStore);

impl Authorities {
    /// Those of a file in PEM.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| unfit(path, &error))?;
        }
        Ok(Self(roots))
    }

    /// Those of this host: of the file that SSL_CERT_FILE names, else of the system's.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::NoSystemAuthorities`].
    pub fn of_system() -> Result<Self, Error> {
        let named = env::var_os(FILE_VARIABLE).map(PathBuf::from);
        let usual = || SYSTEM_FILES.iter().map(PathBuf::from).find(|path| path.exists());
        let path = named.or_else(usual).ok_or(Error::NoSystemAuthorities)?;
        let mut roots = RootCertStore::empty();
        // Some systems trust certificates that are not valid for TLS.
        roots.add_parsable_certificates(certificates(&path)?);
        Ok(Self(roots))
    }
}
