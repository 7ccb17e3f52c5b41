//! Errors that end a connection, or prevent the start of a server.

/// An error of a connection, or of the start of a server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] spillway_tls::Error),
    /// The peer was too slow.
    #[error("{0}")]
    Slow(&'static str),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
