//! Why a value can't be read.

/// The reply for a key that holds a value of another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Why a value can't be read, for clients, log lines and dumps. The first word is the RESP error code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection to the store.
    #[error("SPILL store is away")]
    Away,
    /// The store can't be reached.
    #[error("SPILL store is away: {0}")]
    Connect(spillway_client::Error),
    /// The store answers, but a command's values did not arrive in the time that one command has.
    #[error("SPILL the store is too slow: the command's values did not arrive within deadline-ms")]
    Slow,
    /// This server's pool in the store was destroyed.
    #[error("SPILL the store has lost the value: its pool was destroyed")]
    NoPool,
    /// The store was restarted without its content, or the value was removed from it.
    #[error("SPILL the store has lost the value")]
    Lost,
    /// The store returned other bytes than were put.
    #[error("SPILL the value from the store has a wrong checksum")]
    Checksum,
    /// The store has the value but failed to return it.
    #[error("SPILL the store failed: {0}")]
    Store(spillway_client::Error),
    /// The server has no memory for the value.
    #[error("OOM no memory for a value of {0} bytes")]
    Memory(u64),
}
