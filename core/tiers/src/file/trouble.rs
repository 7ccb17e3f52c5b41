//! Why the disk refuses pages, and until when it is not used.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Pause before a failed disk is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a page was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskTrouble {
    /// The tier has as many pages as it may have.
    Full,
    /// The disk failed; `NOSPC` when it is full.
    Failed(Errno),
}

impl From<Errno> for DiskTrouble {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl fmt::Display for DiskTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("it has as many pages as it may have"),
            Self::Failed(Errno::TIMEDOUT) => f.write_str("the disk does not answer in time"),
            Self::Failed(errno) => errno.fmt(f),
        }
    }
}

/// An access that the disk did not carry out as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// A write failed, or took too long.
    Write(Errno),
    /// A read failed, or took too long.
    Read(Errno),
    /// A read returned other bytes than were written.
    Corrupt,
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Write(errno) => write!(f, "a write failed: {}", DiskTrouble::Failed(errno)),
            Self::Read(errno) => write!(f, "a read failed: {}", DiskTrouble::Failed(errno)),
            Self::Corrupt => f.write_str("a read returned other bytes than were written"),
        }
    }
}

/// What stands in the way of writing.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub(super) last: Option<DiskTrouble>,
    /// Nothing is written before.
    pub(super) until: Option<Instant>,
    /// Whether a thread writes to see if it is over.
    pub(super) trying: bool,
}

impl Trouble {
    /// Whether the disk has failed just before.
    pub(super) fn rests(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn note(&mut self, last: DiskTrouble) {
        self.last = Some(last);
        self.until = Some(Instant::now() + PAUSE);
    }
}
