//! Why a connection or a server ends.

use std::path::PathBuf;

/// What went wrong with a connection, or with starting the server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer does not keep to the protocol.
    #[error(transparent)]
    Wire(#[from] spillway_wire::Error),
    /// The peer asked for something that can be refused only by closing.
    #[error("{0}")]
    Refused(&'static str),
    /// The device failed in the middle of a reply that had begun.
    #[error(transparent)]
    Device(#[from] spillway_block::Error),
    /// TLS failed, or its settings make no sense.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A file with keys or certificates cannot be used.
    #[error("{path}: {reason}", path = path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The peer's certificate names no DNS name.
    #[error("the peer's certificate has no DNS name in its subjectAltName")]
    Nameless,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
