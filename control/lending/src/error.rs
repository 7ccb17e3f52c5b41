//! Errors in messages and settings; the machine itself has no errors.

/// Why a message or settings were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a host's name.
    #[error("'{0}' is not a host's name; use 1 to 253 of a-z, 0-9 and . - _")]
    Host(String),
    /// A message longer than [`crate::MESSAGE_BYTES_MAX`].
    #[error("a message of {0} bytes; at most 4096 are read")]
    Long(usize),
    /// Not a message, or one with fields that are missing, unknown or out of bounds.
    #[error("not a message: {0}")]
    Message(String),
    /// Contradictory settings: which, and what is required.
    #[error("{0}")]
    Settings(&'static str),
}
