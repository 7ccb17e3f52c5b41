//! Errors that end a connection, or prevent the start of a server.

use spillway_types::{Peer, Whose};

/// An error of a connection, or of the start of a server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer violated the protocol.
    #[error(transparent)]
    Wire(#[from] spillway_wire::Error),
    /// The peer requested something that can be refused only by closing the connection.
    #[error("{0}")]
    Refused(&'static str),
    /// The peer did not complete the handshake in time.
    #[error("the peer chose no export in time")]
    Late,
    /// The device failed in the middle of a reply.
    #[error(transparent)]
    Device(#[from] spillway_block::Error),
    /// The kernel's NBD driver is missing, or refused.
    #[error(transparent)]
    Kernel(#[from] spillway_kernel_nbd::Error),
    /// The threads that serve the kernel can't be marked so that it may wait for them.
    #[error("can't set PR_SET_IO_FLUSHER: {0}; it needs CAP_SYS_RESOURCE")]
    Flusher(std::io::Error),
    /// The disk's node does not appear.
    #[error("{} does not appear, though the kernel has the disk: is /dev a devtmpfs, or udev running?", .0.display())]
    Attach(std::path::PathBuf),
    /// The limit of connections is reached.
    #[error("{connections_max} connections are open, and all are identified: no more are accepted")]
    Full {
        /// The server's limit.
        connections_max: usize,
    },
    /// A connection was ended for a newer one.
    #[error("{} holds many unidentified connections: its oldest one was closed", Whose::Peer(*.0))]
    Displaced(Peer),
    /// A user displaces too many connections in a second.
    #[error(
        "{} opens very many unidentified connections: new ones are closed until the second ends",
        Whose::Peer(*.0)
    )]
    Flood(Peer),
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
