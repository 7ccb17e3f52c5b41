//! Errors of the client.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// The reason why libvirt is unreachable, or a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no socket, or no process listens on it.
    #[error("no libvirt listens on {}: {error}", path.display())]
    Absent {
        /// The socket's path.
        path: PathBuf,
        /// The error of connect(2).
        error: io::Error,
    },
    /// It refuses this user, or requires a password or the like.
    #[error(
        "libvirt does not let this user in: run the daemon as root, or as a member of libvirt's group"
    )]
    Stranger,
    /// It has no domain with the name.
    #[error("libvirt has no domain '{name}'")]
    NoDomain {
        /// The name.
        name: String,
    },
    /// libvirt ended, or closed the connection.
    #[error("libvirt closed the connection")]
    Closed,
    /// The deadline passed. A late answer to the call is dropped.
    #[error("libvirt did not answer in time: {what}")]
    TimedOut {
        /// The call that waited.
        what: &'static str,
    },
    /// The message violates libvirt's protocol, or is not the call's result.
    #[error("unexpected message from libvirt: {what}")]
    Garbage {
        /// The problem.
        what: String,
    },
    /// libvirt answered with an error.
    #[error("libvirt refused {what}: {text}")]
    Refused {
        /// The call.
        what: &'static str,
        /// libvirt's text, in one line.
        text: String,
    },
    /// A system call failed.
    #[error("libvirt's socket failed: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    /// Whether the connection is unusable. After a refusal or a timeout it stays usable.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::TimedOut { .. } | Self::NoDomain { .. })
    }

    pub(crate) fn garbage(what: impl Into<String>) -> Self {
        Self::Garbage { what: what.into() }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}
