//! The responses that both sides compute from keys and challenges.

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::{HASH_BYTES_MAX, Hash};

/// The HMAC of the concatenation of `parts`, in the first [`Hash::bytes`] bytes.
pub(super) fn mac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> [u8; HASH_BYTES_MAX] {
    fn of<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> [u8; HASH_BYTES_MAX] {
        // HMAC takes keys of any length.
        let Ok(mut mac) = <M as KeyInit>::new_from_slice(key) else { return [0; HASH_BYTES_MAX] };
        for part in parts {
            mac.update(part);
        }
        widen(&mac.finalize().into_bytes())
    }
    match hash {
        Hash::Sha256 => of::<Hmac<Sha256>>(key, parts),
        Hash::Sha384 => of::<Hmac<Sha384>>(key, parts),
        Hash::Sha512 => of::<Hmac<Sha512>>(key, parts),
    }
}

fn digest(hash: Hash, bytes: &[u8]) -> [u8; HASH_BYTES_MAX] {
    match hash {
        Hash::Sha256 => widen(&Sha256::digest(bytes)),
        Hash::Sha384 => widen(&Sha384::digest(bytes)),
        Hash::Sha512 => widen(&Sha512::digest(bytes)),
    }
}

fn widen(bytes: &[u8]) -> [u8; HASH_BYTES_MAX] {
    let mut wide = [0; HASH_BYTES_MAX];
    wide[..bytes.len()].copy_from_slice(bytes);
    wide
}

/// The augmented challenge: a challenge bound to the shared secret of a Diffie-Hellman exchange.
pub fn augment(hash: Hash, shared: &[u8], challenge: &[u8]) -> [u8; HASH_BYTES_MAX] {
    mac(hash, &digest(hash, shared)[..hash.bytes()], &[challenge])
}

/// The input of a response, except for the key.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    /// The negotiated hash.
    pub hash: Hash,
    /// The challenge, augmented if there is a group.
    pub challenge: &'a [u8],
    /// The challenge's sequence number.
    pub sequence: u32,
    /// The transaction identifier.
    pub transaction: u16,
    /// Name of the host.
    pub host: &'a str,
    /// Name of the subsystem.
    pub subsystem: &'a str,
}

impl Proof<'_> {
    /// The host's response.
    pub fn of_host(&self, key: &[u8]) -> [u8; HASH_BYTES_MAX] {
        self.respond(key, b"HostHost", self.host, self.subsystem)
    }

    /// The controller's response.
    pub fn of_controller(&self, key: &[u8]) -> [u8; HASH_BYTES_MAX] {
        self.respond(key, b"Controller", self.subsystem, self.host)
    }

    fn respond(&self, key: &[u8], role: &[u8], own: &str, peer: &str) -> [u8; HASH_BYTES_MAX] {
        let sequence = self.sequence.to_le_bytes();
        let transaction = self.transaction.to_le_bytes();
        // The zero after the transaction means that no secure channel follows.
        let parts: [&[u8]; 8] = [
            self.challenge,
            &sequence,
            &transaction,
            &[0],
            role,
            own.as_bytes(),
            &[0],
            peer.as_bytes(),
        ];
        mac(self.hash, key, &parts)
    }

    /// Whether `response` is the host's, compared in constant time.
    pub fn is_of_host(&self, key: &[u8], response: &[u8]) -> bool {
        self.equal(&self.of_host(key), response)
    }

    /// Whether `response` is the controller's, compared in constant time.
    pub fn is_of_controller(&self, key: &[u8], response: &[u8]) -> bool {
        self.equal(&self.of_controller(key), response)
    }

    fn equal(&self, expected: &[u8; HASH_BYTES_MAX], response: &[u8]) -> bool {
        let expected = &expected[..self.hash.bytes()];
        expected.len() == response.len()
            && expected.iter().zip(response).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_that_of_rfc_4231() {
        let made = mac(Hash::Sha256, &[0x0b; 20], &[b"Hi ", b"There"]);
        assert_eq!(made[..4], [0xb0, 0x34, 0x4c, 0x61]);
        let made = mac(Hash::Sha512, &[0x0b; 20], &[b"Hi There"]);
        assert_eq!(made[..4], [0x87, 0xaa, 0x7c, 0xde]);
    }

    #[test]
    fn a_proof_holds_for_its_own_parts_only() {
        let proof = Proof {
            hash: Hash::Sha384,
            challenge: &[7; 48],
            sequence: 1,
            transaction: 2,
            host: "nqn.host",
            subsystem: "nqn.subsystem",
        };
        let response = proof.of_host(b"key");
        let response = &response[..48];
        assert!(proof.is_of_host(b"key", response));
        assert!(!proof.is_of_host(b"other", response));
        assert!(!proof.is_of_host(b"key", &response[..47]));
        assert!(!proof.is_of_controller(b"key", response));
        assert!(!Proof { sequence: 2, ..proof }.is_of_host(b"key", response));
        assert!(!Proof { host: "nqn.other", ..proof }.is_of_host(b"key", response));
    }
}
