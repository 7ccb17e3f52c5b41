//! Lets a guest's program request memory from the host, and offer memory that it does not need. The agent in the guest
//! (`spillway-agent`) forwards the request to the host.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let answer = spillway_guest::need(Path::new(spillway_guest::SOCKET), 512 << 20, spillway_guest::WAIT)?;
//! println!("{} bytes are there", answer.granted_bytes);
//! # Ok::<(), spillway_guest::Error>(())
//! ```
//!
//! Each call opens its own connection and keeps no state, so any thread may call, also after a fork. No call takes
//! longer than its time limit, whatever the agent does.

#![forbid(unsafe_code)]

mod line;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_guests::agent::BYTES_MAX;
pub use spillway_guests::call::{Call, Reply, SOCKET};

/// Longest time that a working agent takes: 30 s for the host, which answers once the memory is available, and 5 s for
/// the agent itself.
pub const WAIT: Duration = Duration::from_secs(35);

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Bytes granted or taken; 0 is a refusal. The host rounds up to whole sections, so this can exceed the request.
    pub granted_bytes: u64,
    /// The reason why it was less than requested, if the host gave a reason.
    pub why: Option<String>,
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid amount.
    #[error("{0} bytes: ask for 1 byte to 4 PiB")]
    Amount(u64),
    /// No agent listens there, or this user may not connect.
    #[error("no agent at {}: {source}; does spillway-agent run in this guest?", path.display())]
    Connect {
        /// The socket's path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The wait has ended. The memory may still arrive.
    #[error("the agent does not reply in time")]
    Timeout,
    /// The agent has ended the connection without a reply.
    #[error("the agent closed the connection without a reply")]
    Lost,
    /// The message is not a reply.
    #[error("the agent's reply is {0}")]
    Reply(spillway_guests::Error),
    /// The reply belongs to another call.
    #[error("the agent's reply belongs to another call")]
    Other,
    /// A system call failed.
    #[error("asking the agent: {0}")]
    Io(#[from] io::Error),
}

/// Requests `bytes` more from the host, and waits at most `wait` until they are available.
///
/// # Errors
/// There is no answer. A refusal is an answer.
pub fn need(socket: &Path, bytes: u64, wait: Duration) -> Result<Answer, Error> {
    answer(socket, &Call::Need { bytes }, bytes, wait)
}

/// Offers `bytes` to the host, and waits at most `wait` until it has taken them.
///
/// # Errors
/// There is no answer. A refusal is an answer.
pub fn give(socket: &Path, bytes: u64, wait: Duration) -> Result<Answer, Error> {
    answer(socket, &Call::Give { bytes }, bytes, wait)
}

fn answer(socket: &Path, call: &Call, bytes: u64, wait: Duration) -> Result<Answer, Error> {
    if bytes == 0 || bytes > BYTES_MAX {
        return Err(Error::Amount(bytes));
    }
    match ask(socket, call, wait)? {
        Reply::Answer { granted_bytes, why } => Ok(Answer { granted_bytes, why }),
        Reply::Status { .. } => Err(Error::Other),
    }
}

/// Makes any call to the agent that listens at `socket`, and waits at most `wait` for its reply.
///
/// # Errors
/// There is no reply, or an invalid one.
pub fn ask(socket: &Path, call: &Call, wait: Duration) -> Result<Reply, Error> {
    let line = line::exchange(socket, &call.encode(), wait)?;
    Reply::decode(&line).map_err(Error::Reply)
}
