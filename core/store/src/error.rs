//! What can go wrong beyond a refusal.

use spillway_types::PoolSpecError;

/// Why a request could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such pool (any more).
    #[error("no such pool")]
    NoPool,
    /// There is no such client (any more).
    #[error("no such client")]
    NoClient,
    /// The client may not join the shared pool of this UUID.
    #[error("client is not authorised for the shared pool {0:#034x}")]
    Unauthorised(u128),
    /// The shared pool is there, but its values live otherwise than asked for.
    #[error("the shared pool {0:#034x} has another lifetime")]
    Lifetime(u128),
    /// No shared pool of this UUID is there to join.
    #[error("there is no shared pool {0:#034x}")]
    NoSharedPool(u128),
    /// A shared pool is left, not destroyed, and a private one destroyed, not left.
    #[error("a shared pool is left and a private one destroyed")]
    WrongSharing,
    /// All clients, or all pools, that a store can have are there.
    #[error("the store has no room for another client or pool")]
    TableFull,
    /// Only a private persistent pool of at least one page can be reserved.
    #[error("only a private persistent pool of at least one page can be reserved")]
    Unreservable,
    /// There is no room to set so many pages aside, or too many pools are reserved.
    #[error("no room to set {0} pages aside")]
    NoRoom(u64),
    /// A flag word names no pool that can be made.
    #[error(transparent)]
    Spec(#[from] PoolSpecError),
    /// The configuration cannot be met.
    #[error("store configuration: {0}")]
    Config(&'static str),
    /// The memory that another process kept is not what a store leaves behind.
    #[error("kept memory: {0}; give it up to start with an empty store")]
    Damaged(&'static str),
    /// The value is stored, but it is not one page long.
    #[error("the value is {0} bytes long, not a page")]
    NotAPage(usize),
    /// What came back from a lower tier is not what was stored.
    #[error("stored bytes are corrupt: checksum mismatch")]
    Corrupt,
    /// The value went to the disk, which fails or does not answer in time.
    #[error("the disk does not give the value back: {0}")]
    Disk(#[source] std::io::Error),
    /// The value went to a blade, which does not give it back: it has lost it, or does not answer.
    #[error("the blade does not give the value back")]
    Gone,
    /// More readers hold the value at once than can be counted (50,000).
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
