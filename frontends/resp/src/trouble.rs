//! Why a command failed.

use std::borrow::Cow;

use spillway_store::Refusal;

/// Why a key can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// There is no memory left.
    #[error("OOM the store has no memory left for this value")]
    Full,
    /// The client is at its target.
    #[error("OOM this client holds all the memory that its target allows")]
    AtTarget,
    /// The client is being moved.
    #[error("TRYAGAIN this client is being moved to another daemon")]
    Moving,
    /// The pool is gone: the database was flushed, or the client removed.
    #[error("TRYAGAIN the database was flushed meanwhile")]
    Flushed,
    /// There are too many keys with the same hash.
    #[error("ERR there are too many keys of the same hash")]
    Crowded,
    /// The store failed.
    #[error("ERR the store: {0}")]
    Store(spillway_store::Error),
}

impl From<spillway_store::Error> for Trouble {
    fn from(error: spillway_store::Error) -> Self {
        match error {
            spillway_store::Error::NoPool => Self::Flushed,
            error => Self::Store(error),
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(reason: Refusal) -> Self {
        match reason {
            Refusal::AtTarget => Self::AtTarget,
            // Lengths are checked before: a record fits always.
            Refusal::NodeFull | Refusal::Length => Self::Full,
            Refusal::Frozen => Self::Moving,
            Refusal::NoPool => Self::Flushed,
        }
    }
}

/// An error that a client is told: one line, with its code first.
#[derive(Debug)]
pub struct Refused(pub Cow<'static, [u8]>);

impl Refused {
    /// A line of its own.
    pub const fn line(line: &'static str) -> Self {
        Self(Cow::Borrowed(line.as_bytes()))
    }

    /// A line that was put together.
    pub fn told(line: impl Into<Vec<u8>>) -> Self {
        Self(Cow::Owned(line.into()))
    }

    /// A line that quotes the client's argument, as Redis shows it: up to its first zero byte, without line ends around
    /// the line.
    pub fn quoting(before: &str, said: &[u8], behind: &str) -> Self {
        let line = [before.as_bytes(), until_zero(said), behind.as_bytes()].concat();
        let is_text = |byte: &u8| !matches!(byte, b'\r' | b'\n');
        let end = line.iter().rposition(is_text).map_or(0, |last| last + 1);
        Self::told(&line[..end])
    }
}

impl From<Trouble> for Refused {
    fn from(trouble: Trouble) -> Self {
        Self::told(trouble.to_string())
    }
}

/// The bytes before the first zero.
pub fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}
