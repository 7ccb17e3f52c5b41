//! Why a process can't be paged.

use rustix::io::Errno;

/// Why a process can't be paged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// userfaultfd was refused.
    Userfaultfd(Errno),
    /// No memory for the pager's own data, or no tasks.
    Resources(Errno),
    /// The store could not be opened.
    Store(Errno),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Userfaultfd(errno) => write!(f, "userfaultfd was refused: {errno}"),
            Self::Resources(errno) => write!(f, "no resources for the pager: {errno}"),
            Self::Store(errno) => write!(f, "the page store could not be opened: {errno}"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// The kernel's error.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match *self {
            Self::Userfaultfd(errno) | Self::Resources(errno) | Self::Store(errno) => errno,
        }
    }
}

/// The kernel's reason, or that a setting can't be met.
impl From<spillway_store::Error> for Error {
    fn from(error: spillway_store::Error) -> Self {
        let errno = match &error {
            spillway_store::Error::Io(error) => Errno::from_io_error(error),
            _ => None,
        };
        Self::Store(errno.unwrap_or(Errno::INVAL))
    }
}
