//! Errors of commands.

use std::borrow::Cow;

use spillway_store::Refusal;

/// The reason why a key can't be read or written.
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
    /// Too many keys have the same hash.
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
            // Lengths are checked before. A record always fits.
            Refusal::NodeFull | Refusal::Length => Self::Full,
            Refusal::Frozen => Self::Moving,
            Refusal::NoPool => Self::Flushed,
        }
    }
}

/// An error reply: one line that begins with its code.
#[derive(Debug)]
pub struct Refused(pub Cow<'static, [u8]>);

impl Refused {
    /// An error with a fixed line.
    pub const fn line(line: &'static str) -> Self {
        Self(Cow::Borrowed(line.as_bytes()))
    }

    /// An error with a composed line.
    pub fn told(line: impl Into<Vec<u8>>) -> Self {
        Self(Cow::Owned(line.into()))
    }

    /// An error that quotes an argument of the client, as Redis does: up to its first zero byte, and without line ends
    /// around the line.
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
