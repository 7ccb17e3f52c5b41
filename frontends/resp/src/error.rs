//! Why a connection or a server ends.

/// What went wrong with a connection, or with starting the server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no TLS with this peer.
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
