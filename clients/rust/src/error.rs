//! Errors; a refusal and a miss are not errors.

use std::io;

use spillway_wire::nvme::Status;
use std::path::PathBuf;

use crate::nvme_tcp::call::Trouble;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text names no store.
    #[error(
        "'{text}' names no store: {why}; write embed:, embed:?capacity=64M, ring:/run/spillway/spillway.sock, \
         guest:, nvme+tcp://host:4420 or nvme+tls://host:4421?certificate=..."
    )]
    Url {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The store can't be reached.
    #[error("can't connect to {peer}: {source}")]
    Connect {
        /// Which.
        peer: String,
        /// Why.
        source: io::Error,
    },
    /// The store is reachable, but refuses this client.
    #[error("{peer} refused the connection: {why}")]
    Refused {
        /// Which.
        peer: String,
        /// Why.
        why: &'static str,
    },
    /// The connection has ended. Whether operations in flight took effect is unknown.
    #[error("the connection to the store has ended")]
    Lost,
    /// A store on another host did not answer in time, new connections included. Values of failed
    /// puts are not stored, and will not appear later.
    #[error("the store can't be reached: {0}")]
    Unreachable(Trouble),
    /// The store was restarted without the pool, or was unreachable for longer than failed writes
    /// can be recorded. The pool's values are lost.
    #[error("the store has lost the pool")]
    PoolLost,
    /// The file contains no secret.
    #[error("secret file {}: {why}", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A `nvme+tls` URL leaves a file out.
    #[error("nvme+tls needs certificate=PATH, key=PATH and authority=PATH after the ?")]
    TlsFiles,
    /// Keys or certificates can't be used.
    #[error(transparent)]
    Tls(#[from] spillway_tls::Error),
    /// No answer came in time, and the connection was closed.
    #[error("the store did not answer in time")]
    Timeout,
    /// The process is the child of the one that opened the store; it must open the store itself.
    #[error("the store was opened before a fork; open it again in the child")]
    Forked,
    /// The pool does not exist (any more).
    #[error("no such pool")]
    NoPool,
    /// This client may not join the shared pool.
    #[error("not authorised for the shared pool")]
    Unauthorised,
    /// The shared pool exists, but with another lifetime than requested.
    #[error("the shared pool has another lifetime")]
    Lifetime,
    /// There is no shared pool with this UUID.
    #[error("there is no such shared pool")]
    NoSharedPool,
    /// The store is full: no further client or pool fits.
    #[error("the store has no room for another client or pool")]
    Full,
    /// The value is empty, or longer than a request can carry.
    #[error("a value of {bytes} bytes; 1 to {limit} are taken")]
    Length {
        /// Its bytes.
        bytes: usize,
        /// Most bytes.
        limit: usize,
    },
    /// A lower tier returned other bytes than were stored.
    #[error("stored bytes are corrupt")]
    Corrupt,
    /// The store failed.
    #[error("the store failed: {0}")]
    Failed(String),
    /// The peer violated the protocol.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// Translates the status of a command about pools.
    #[cold]
    pub(crate) fn of_pools(status: Status) -> Self {
        match status.code() {
            Status::INVALID_NAMESPACE => Self::NoPool,
            Status::ACCESS_DENIED => Self::Unauthorised,
            Status::CAPACITY => Self::Full,
            // This library sends no other field that could be invalid.
            Status::INVALID_FIELD => Self::Lifetime,
            _ => Self::Failed(status.to_string()),
        }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<spillway_store::Error> for Error {
    fn from(error: spillway_store::Error) -> Self {
        use spillway_store::Error as Store;
        match error {
            Store::NoPool => Self::NoPool,
            Store::Unauthorised(_) => Self::Unauthorised,
            Store::Lifetime(_) => Self::Lifetime,
            Store::NoSharedPool(_) => Self::NoSharedPool,
            Store::TableFull => Self::Full,
            Store::Corrupt | Store::Disk(_) => Self::Corrupt,
            Store::Io(error) => Self::Io(error),
            other => Self::Failed(other.to_string()),
        }
    }
}
