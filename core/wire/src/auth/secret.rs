//! Secrets in the form that operators configure: `DHHC-1:hh:base64:`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::response::mac;
use super::{HASH_BYTES_MAX, Hash};

/// A secret. A host or controller authenticates by it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: [u8; HASH_BYTES_MAX],
    key_bytes: usize,
    /// The hash that derives the key from the secret and the owner's name. `None`: the secret is the key.
    transform: Option<Hash>,
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

/// The reason why a text is no secret. It does not quote the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not look like `DHHC-1:hh:base64:`.
    #[error("a secret looks like DHHC-1:00:...: (make one with nvme gen-dhchap-key)")]
    Form,
    /// The hash between the colons is not 00 to 03.
    #[error("the hash of a secret is 00, 01, 02 or 03")]
    Hash,
    /// The key does not have 32, 48 or 64 bytes, or not those that its hash has.
    #[error("a secret has 32, 48 or 64 bytes, as many as its hash")]
    Length,
    /// The checksum is wrong, as after a typing mistake.
    #[error("the checksum of the secret is wrong: it was not copied whole")]
    Checksum,
}

impl Secret {
    /// Parses a secret (Base 2.1, section 8.3.4.5.8): the key and its CRC-32 in base64.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let inner = text.trim().strip_prefix("DHHC-1:").and_then(|rest| rest.strip_suffix(':'));
        let (hash, encoded) = inner.and_then(|s| s.split_once(':')).ok_or(SecretError::Form)?;
        let transform = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretError::Form)?;
        let (key, sum) = bytes.split_last_chunk::<4>().ok_or(SecretError::Length)?;
        let fits = match transform {
            None => matches!(key.len(), 32 | 48 | 64),
            Some(hash) => key.len() == hash.bytes(),
        };
        if !fits {
            return Err(SecretError::Length);
        }
        if crc32fast::hash(key) != u32::from_le_bytes(*sum) {
            return Err(SecretError::Checksum);
        }
        let mut secret = Self { key: [0; HASH_BYTES_MAX], key_bytes: key.len(), transform };
        secret.key[..key.len()].copy_from_slice(key);
        Ok(secret)
    }

    /// The key of the owner with the NVMe Qualified Name `nqn`: a buffer, and the length of the key in it.
    pub fn key_of(&self, nqn: &str) -> ([u8; HASH_BYTES_MAX], usize) {
        let key = &self.key[..self.key_bytes];
        match self.transform {
            None => (self.key, self.key_bytes),
            Some(hash) => (mac(hash, key, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]), hash.bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `nvme gen-dhchap-key --hmac=0` of nvme-cli 2.3.
    const PLAIN: &str = "DHHC-1:00:T3sGex2wgWEj1SC9bd2ZY6tYia8IeXymwMwVq4fMIZ9vbP05:";

    #[test]
    fn reads_secrets() {
        let secret = Secret::parse(PLAIN).unwrap();
        let (key, bytes) = secret.key_of("nqn.any");
        assert_eq!((bytes, key[0], key[1]), (32, 0x4f, 0x7b));
        let hashed = Secret { transform: Some(Hash::Sha256), ..secret.clone() };
        assert_ne!(hashed.key_of("nqn.a").0, hashed.key_of("nqn.b").0);
        assert_ne!(hashed.key_of("nqn.a").0, secret.key_of("nqn.a").0);
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn says_what_is_wrong() {
        let cases = [
            ("hunter2", SecretError::Form),
            ("DHHC-1:00:!!!!:", SecretError::Form),
            ("DHHC-1:04:T3sGex2wgWEj1SC9bd2ZY6tYia8IeXymwMwVq4fMIZ9vbP05:", SecretError::Hash),
            ("DHHC-1:02:T3sGex2wgWEj1SC9bd2ZY6tYia8IeXymwMwVq4fMIZ9vbP05:", SecretError::Length),
            ("DHHC-1:00:A3sGex2wgWEj1SC9bd2ZY6tYia8IeXymwMwVq4fMIZ9vbP05:", SecretError::Checksum),
        ];
        for (text, error) in cases {
            assert_eq!(Secret::parse(text), Err(error), "{text}");
        }
    }
}
