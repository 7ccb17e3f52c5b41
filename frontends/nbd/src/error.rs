//! Why a connection or a server ends.

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
    /// The kernel does not take a device as a disk.
    #[error("{0}")]
    Attach(String),
    /// There is no TLS with this peer.
    #[error(transparent)]
    Tls(#[from] spillway_tls::Error),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
