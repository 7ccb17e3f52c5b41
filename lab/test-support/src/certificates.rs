//! An authority that signs certificates, in files as the programs read them.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::CertificateDer;
use spillway_tls::{ClientSettings, Files, ServerSettings, Versions};
use tempfile::TempDir;

/// An authority, and a folder for its files, which is removed with it.
pub struct Authority {
    certificate: Certificate,
    key: KeyPair,
    folder: TempDir,
    path: PathBuf,
}

/// A certificate and its key.
pub struct Signed {
    certificate: Certificate,
    key: KeyPair,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// If there is no temporary folder.
    pub fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("authority.pem");
        fs::write(&path, certificate.pem()).unwrap();
        Self { certificate, key, folder, path }
    }

    /// The file with its own certificate, for those that trust it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its own certificate, as in [`Self::path`].
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// Its own certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    /// Signs a certificate with these DNS names and addresses; there may be none.
    ///
    /// # Panics
    /// If a name is not valid in a certificate.
    pub fn sign(&self, names: &[&str]) -> Signed {
        self.sign_with(names, |_| {})
    }

    /// Signs a certificate that has expired.
    ///
    /// # Panics
    /// If a name is not valid in a certificate.
    pub fn sign_expired(&self, names: &[&str]) -> Signed {
        self.sign_with(names, |params| params.not_after = date_time_ymd(2001, 1, 1))
    }

    fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        Signed { certificate: params.signed_by(&key, &self.certificate, &self.key).unwrap(), key }
    }

    /// Writes the files of a new certificate for `name`, and replaces existing ones. This authority's certificate is
    /// beside them.
    ///
    /// # Panics
    /// If they can't be written.
    pub fn files(&self, name: &str) -> Files {
        let signed = self.sign(&[name]);
        let write = |kind: &str, text: String| {
            let path = self.folder.path().join(format!("{name}.{kind}.pem"));
            fs::write(&path, text).unwrap();
            path
        };
        Files {
            certificate: write("certificate", signed.pem()),
            key: write("key", signed.key_pem()),
            authority: Some(self.path.clone()),
        }
    }

    /// Settings of the server `name`, which requires clients' certificates to be signed by this authority.
    pub fn server(&self, name: &str, versions: Versions) -> ServerSettings {
        ServerSettings::load(&self.files(name), versions).unwrap()
    }

    /// Settings of the client `name` of the server `server`, whose certificate must be signed by this authority.
    pub fn client(&self, name: &str, server: &str) -> ClientSettings {
        ClientSettings::load(&self.files(name), &self.path, server).unwrap()
    }
}

impl Signed {
    /// The certificate as PEM.
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// The certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    /// Its key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Its key.
    pub fn key_der(&self) -> Vec<u8> {
        self.key.serialize_der()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_and_server_read_what_it_writes() {
        let authority = Authority::new();
        authority.server("server.test", Versions::Tls13);
        authority.client("client.test", "server.test");
        assert_eq!(fs::read_to_string(authority.path()).unwrap(), authority.pem());
    }

    #[test]
    fn each_certificate_has_a_key_of_its_own() {
        let authority = Authority::new();
        let [one, other] = [(); 2].map(|()| authority.sign(&["a.test"]));
        assert_ne!(one.der(), other.der());
        assert_ne!(one.key_der(), other.key_der());
    }
}
