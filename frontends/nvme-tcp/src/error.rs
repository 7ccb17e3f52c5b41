//! What can go wrong with a target and its connections.

use spillway_types::Denied;
use spillway_wire::auth::Failure;

/// Why a target did not start, or a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be met.
    #[error("NVMe/TCP target: {0}")]
    Config(&'static str),
    /// The host sent something that cannot be read.
    #[error(transparent)]
    Wire(#[from] spillway_wire::Error),
    /// The host sent PDUs in an order, or data in a place, that is not allowed.
    #[error("the host broke the protocol: {0}")]
    Protocol(&'static str),
    /// The host ended the connection with a Terminate PDU of this status.
    #[error("the host ended the connection with status {0}")]
    Terminated(u16),
    /// The host took too long to connect its queue, or did not keep it alive.
    #[error("the host was silent for too long")]
    Silent,
    /// The host left data of its commands unsent for too long.
    #[error(
        "client '{client}' did not go on with the data of its commands, of which {bytes} bytes are missing, for {seconds} s"
    )]
    Stalled {
        /// The client's name.
        client: String,
        /// What was to come.
        bytes: u64,
        /// For how long nothing came.
        seconds: u64,
    },
    /// The host may not use the target.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The host did not prove to know its secret.
    #[error("authentication failed: {0:?}")]
    Authentication(Failure),
    /// The controller that the queue belonged to is gone.
    #[error("the controller is gone")]
    ControllerGone,
    /// No place for one more connection.
    #[error("all {connections_max} connections are taken by hosts that were let in")]
    Full {
        /// How many the server takes.
        connections_max: usize,
    },
    /// There is no TLS with this host.
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
