//! Errors of a target and its connections.

use spillway_types::Denied;

/// Why a target did not start, or a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings are wrong.
    #[error("NVMe/TCP target: {0}")]
    Config(&'static str),
    /// The host sent bytes that are no valid PDU.
    #[error(transparent)]
    Wire(#[from] spillway_wire::Error),
    /// The host sent a PDU or data that the protocol does not allow at this point.
    #[error("the host broke the protocol: {0}")]
    Protocol(&'static str),
    /// The host ended the connection with a Terminate PDU of this status.
    #[error("the host ended the connection with status {0}")]
    Terminated(u16),
    /// The host took too long to connect its queue, to receive answers, or to send Keep Alive.
    #[error("the host was silent for too long")]
    Silent,
    /// The host took too long to send the data of its commands.
    #[error(
        "client '{client}' has sent too little of its commands' data for {seconds} s: {bytes} bytes are missing"
    )]
    Stalled {
        /// The client's name.
        client: String,
        /// Bytes that are missing.
        bytes: u64,
        /// The time that the host had.
        seconds: u64,
    },
    /// The host may not use the target.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The controller of the queue has ended.
    #[error("the controller has ended")]
    ControllerGone,
    /// There is no slot for one more connection.
    #[error("all {connections_max} connections are taken by hosts that were let in")]
    Full {
        /// How many the server allows.
        connections_max: usize,
    },
    /// TLS with this host failed.
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
