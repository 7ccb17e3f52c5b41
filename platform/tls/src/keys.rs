//! Keys and certificates, read from their files once for all servers and clients that use them.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::{Error, Files, first_name, unfit};

/// The keys and certificates that were in their files when these were read.
#[derive(Debug)]
pub struct Keys {
    files: Files,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The authorities that sign peers' certificates, if there is such a file.
    authority: Option<Vec<CertificateDer<'static>>>,
}

/// The files whose contents differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// [`Files::certificate`].
    pub certificate: bool,
    /// [`Files::key`].
    pub key: bool,
    /// [`Files::authority`].
    pub authority: bool,
}

impl Keys {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(files: &Files) -> Result<Self, Error> {
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key);
        Ok(Self {
            files: files.clone(),
            chain,
            key: key.map_err(|error| unfit(&files.key, &error))?,
            authority: files.authority.as_deref().map(certificates).transpose()?,
        })
    }

    /// The name by which peers know the owner of the certificate: its first DNS name.
    ///
    /// # Errors
    /// [`Error::Nameless`].
    pub fn name(&self) -> Result<String, Error> {
        first_name(self.chain.first().ok_or(Error::Nameless)?)
    }

    /// The differences between these and `other`.
    pub fn differences(&self, other: &Self) -> Differences {
        Differences {
            certificate: self.chain != other.chain,
            key: self.key != other.key,
            authority: self.authority != other.authority,
        }
    }

    /// The certificate chain, and the key of its first certificate.
    pub(crate) fn own(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain.clone(), self.key.clone_key())
    }

    /// The authorities, and the file that holds them.
    pub(crate) fn roots(&self) -> Result<Option<(&Path, Arc<RootCertStore>)>, Error> {
        let Some((path, authority)) = self.files.authority.as_deref().zip(self.authority.as_ref())
        else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        for certificate in authority {
            roots.add(certificate.clone()).map_err(|error| unfit(path, &error))?;
        }
        Ok(Some((path, roots.into())))
    }

    /// The error that says why key and certificate can't be used.
    pub(crate) fn unfit(&self, error: rustls::Error) -> Error {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                let certificate = self.files.certificate.display();
                unfit(&self.files.key, &format!("not the key of the certificate in {certificate}"))
            }
            other => other.into(),
        }
    }
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unfit(path, &error));
    let found = found?;
    if found.is_empty() {
        return Err(unfit(path, &"no certificate in it"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    #[test]
    fn the_name_is_that_of_the_own_certificate_not_of_who_signed_it() {
        let params = |name: &str| CertificateParams::new([name.to_owned()]).unwrap();
        let (signer_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut signer = params("signer.test");
        signer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signer = signer.self_signed(&signer_key).unwrap();
        let own = params("own.test").signed_by(&key, &signer, &signer_key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let files = Files {
            certificate: dir.path().join("certificate"),
            key: dir.path().join("key"),
            authority: None,
        };
        fs::write(&files.certificate, own.pem() + &signer.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        assert_eq!(Keys::read(&files).unwrap().name().unwrap(), "own.test");
    }
}
