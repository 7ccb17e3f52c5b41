//! Errors of the registry.

use spillway_types::Size;

/// Why a request to the registry failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no client of this name.
    #[error("there is no client '{0}'; `spillway client list` lists all")]
    NoClient(String),
    /// This is a program, not a client of the store.
    #[error("'{0}' is a running program: it is removed when it ends")]
    Program(String),
    /// A client's floor is above its cap.
    #[error(
        "client '{name}': its floor {floor} is more than its cap {cap} (target): lower the floor, or raise the cap"
    )]
    FloorAboveCap {
        /// The client or program.
        name: String,
        /// Its floor.
        floor: Size,
        /// Its cap.
        cap: Size,
    },
    /// A client with this name exists.
    #[error("a client '{0}' is there already")]
    ClientExists(String),
    /// A host without a secret, where other hosts reach the target.
    #[error(
        "client '{0}' needs a secret, because other hosts reach the target; create one with nvme gen-dhchap-key"
    )]
    NeedsSecret(String),
    /// Another named client has the same identity.
    #[error("client '{0}' is known by the same identity")]
    IdentityTaken(String),
    /// The configuration file names this client.
    #[error("client '{0}' is named in the configuration file; change it there and reload")]
    Configured(String),
    /// There is no pool with this number.
    #[error("there is no pool {0}; `spillway pool list` lists all")]
    NoPool(u32),
    /// There is no block device of this name.
    #[error("there is no block device '{0}'; `spillway pool list` lists all")]
    NoBlock(String),
    /// A block device with this name exists.
    #[error("a block device '{0}' is there already")]
    BlockExists(String),
    /// The block device is open.
    #[error(
        "block device '{0}' is in use; disconnect it or discard its contents (blkdiscard) first"
    )]
    InUse(String),
    /// A disk of the configuration file has the client's pages.
    #[error(
        "disk '{0}' has its pages: to free them, spillway disk empty {0}; to remove the disk, remove it from the configuration file and restart the daemon"
    )]
    HasDisk(String),
    /// Memory is lent to the client.
    #[error("'{0}' has borrowed memory here; `spillway lend drain` recalls it")]
    HasLoan(String),
    /// There is no loan with this borrower and number.
    #[error("nothing is lent as {0}")]
    NoLoan(String),
    /// The loan exists already.
    #[error("a loan {0} is there already")]
    LoanExists(String),
    /// A name is empty, too long, or has invalid characters.
    #[error("'{0}' is not a name; use 1 to 223 of a-z, A-Z, 0-9, and . _ : @ + -")]
    Name(String),
    /// Another export or import of the client has not ended.
    #[error("client '{0}' is being moved already: try again when that has ended")]
    Moving(String),
    /// The client was not exported.
    #[error("client '{0}' is not frozen by an export")]
    NotFrozen(String),
    /// The client has moved to another daemon.
    #[error(
        "client '{0}' has moved to another daemon; to move it once more, spillway client thaw {0}"
    )]
    HasMoved(String),
    /// The client has not moved to another daemon.
    #[error("client '{0}' has not moved to another daemon, or is accepted here again")]
    NotMoved(String),
    /// The client was used since its pools were imported, or they were not imported.
    #[error(
        "client '{0}' has no import that nobody has used since: the flushes from its earlier daemon could remove newer values. Compare both, and remove or thaw it there"
    )]
    Used(String),
    /// Programs are connected to the client to import.
    #[error("a program is connected to client '{0}' where it would arrive: end it first")]
    Connected(String),
    /// There were more flushes since the export than can be recorded.
    #[error(
        "client '{0}' flushed too much since its export, or the daemon was restarted; export it again"
    )]
    TooManyFlushes(String),
    /// An imported stream is invalid, damaged, or ends early.
    #[error("the stream {0}")]
    Stream(&'static str),
    /// The client to import has pools already.
    #[error("client '{0}' has pools here; import into a client without any")]
    NotEmpty(String),
    /// A value of an imported stream does not fit.
    #[error("no room: {0}; nothing is kept. Raise the client's target or the store's capacity")]
    NoRoom(&'static str),
    /// The journal is full.
    #[error("no room to remember more clients and devices ({0} bytes of record)")]
    JournalFull(usize),
    /// This version can't read the journal.
    #[error("the kept record of clients can't be read: {0}")]
    Journal(&'static str),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] spillway_store::Error),
    /// The block device could not be made.
    #[error(transparent)]
    Block(#[from] spillway_block_store::Error),
    /// A file or stream could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
