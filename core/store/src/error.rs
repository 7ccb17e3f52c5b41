//! Errors; a refusal is not an error.

use spillway_types::PoolSpecError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool does not exist (any more).
    #[error("no such pool")]
    NoPool,
    /// The client does not exist (any more).
    #[error("no such client")]
    NoClient,
    /// The client may not join the shared pool of this UUID.
    #[error("client is not authorised for the shared pool {0:#034x}")]
    Unauthorised(u128),
    /// The shared pool exists, but with another lifetime than requested.
    #[error("the shared pool {0:#034x} has another lifetime")]
    Lifetime(u128),
    /// There is no shared pool with this UUID.
    #[error("there is no shared pool {0:#034x}")]
    NoSharedPool(u128),
    /// A shared pool can only be left, and a private one only destroyed.
    #[error("a shared pool is left and a private one destroyed")]
    WrongSharing,
    /// The store has the maximum number of clients or pools.
    #[error("the store has no room for another client or pool")]
    TableFull,
    /// Only a private persistent pool of at least one page can be reserved.
    #[error("only a private persistent pool of at least one page can be reserved")]
    Unreservable,
    /// This many pages can't be reserved, or too many pools are reserved.
    #[error("no room to set {0} pages aside")]
    NoRoom(u64),
    /// A flag word describes an impossible pool.
    #[error(transparent)]
    Spec(#[from] PoolSpecError),
    /// The configuration cannot be met.
    #[error("store configuration: {0}")]
    Config(&'static str),
    /// The memory that another process kept is not a valid store.
    #[error("kept memory: {0}; give it up to start with an empty store")]
    Damaged(&'static str),
    /// The value is stored, but it is not one page long.
    #[error("the value is {0} bytes long, not a page")]
    NotAPage(usize),
    /// A lower tier returned other bytes than were stored.
    #[error("stored bytes are corrupt: checksum mismatch")]
    Corrupt,
    /// The value lies on the disk, which fails or does not answer in time.
    #[error("the disk does not return the value: {0}")]
    Disk(#[source] std::io::Error),
    /// The value lies on a blade, which has lost it or does not answer.
    #[error("the blade does not return the value")]
    Gone,
    /// The value has more concurrent readers than can be counted (50,000).
    #[error("too many readers of one value")]
    Busy,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
