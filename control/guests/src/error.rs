//! What can be wrong with what comes from outside.

/// Why a line of the agent's protocol could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A line is longer than [`crate::agent::LINE_BYTES_MAX`].
    #[error("a line of more than {} bytes", crate::agent::LINE_BYTES_MAX)]
    Long,
    /// It is no message, or one of its fields has a value that is not allowed.
    #[error("not a message: {0}")]
    Message(String),
}
