//! In-band authentication: DH-HMAC-CHAP (Base 2.1, section 8.3.4.5), as Linux's host and target speak it.
//!
//! ```text
//! host                                             controller
//!  negotiate: hashes, groups  -- Authentication Send ---->
//!     <-- Authentication Receive -- challenge: hash, group, c1, s1, g^x
//!  reply: response, c2, s2, g^y ------------------------->   (checks the response)
//!     <---------------------------- success 1: response, if the host asked
//!  success 2, if it asked ------------------------------->   (the host checked it)
//! ```
//! Either side may answer with a failure message, which ends the authentication.

mod layout;
mod message;
mod response;
mod secret;

pub use message::{Challenge, Failure, Message, Negotiate, Reply, Success1};
pub use response::{Proof, augment};
pub use secret::{Secret, SecretError};

/// Longest message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Longest hash, bytes. Challenges, responses and keys are as long.
pub const HASH_BYTES_MAX: usize = 64;

/// A hash function (Base 2.1, section 8.3.4.5.2, figure 740).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// All of them, the strongest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    /// The hash of this number. `None` for an unknown one.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha384),
            3 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Bytes of the hash.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}
