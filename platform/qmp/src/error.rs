//! Errors of a monitor.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::GREETING_WAIT;
use crate::line::LINE_BYTES_MAX;

/// The reason why a monitor is unreachable, or a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no socket, or no process listens on it.
    #[error("no QEMU listens on {}: {error}", path.display())]
    Absent {
        /// The socket's path.
        path: PathBuf,
        /// The error of connect(2).
        error: io::Error,
    },
    /// QEMU sent no greeting within [`GREETING_WAIT`].
    #[error(
        "the monitor {} is held by somebody else: no greeting for {} s (QEMU serves one client at a time)",
        path.display(), GREETING_WAIT.as_secs()
    )]
    Held {
        /// The socket's path.
        path: PathBuf,
    },
    /// QEMU ended, or closed the connection.
    #[error("QEMU closed the monitor")]
    Closed,
    /// The deadline passed. A late answer to the command is dropped.
    #[error("the monitor did not answer in time: {what}")]
    TimedOut {
        /// The command or step that waited.
        what: String,
    },
    /// The message is not QMP, or not the command's answer.
    #[error("the monitor does not speak QMP: {what}")]
    Garbage {
        /// The problem.
        what: String,
    },
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("the monitor does not speak QMP: a line of more than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// QEMU answered with an error.
    #[error("QEMU refused {command}: {text} ({class})")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's class of the error, such as `GenericError` or `DeviceNotFound`.
        class: String,
        /// QEMU's text, in one line.
        text: String,
    },
    /// A system call failed.
    #[error("the monitor's socket failed: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    /// Whether the connection is unusable. After a refusal or a timeout it stays usable.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::TimedOut { .. })
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
