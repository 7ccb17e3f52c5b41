//! How a program of a guest asks the host for more memory, and says what it can do without. It asks the agent in the guest
//! (`spillway-agent`), which asks the host.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let answer = spillway_guest::need(Path::new(spillway_guest::SOCKET), 512 << 20, spillway_guest::WAIT)?;
//! println!("{} bytes are there", answer.granted_bytes);
//! # Ok::<(), spillway_guest::Error>(())
//! ```
//!
//! A call makes a connection of its own and keeps nothing, so any thread may make it, also after a fork. None takes longer
//! than its time, whatever the agent does.

#![forbid(unsafe_code)]

mod line;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_guests::agent::BYTES_MAX;
pub use spillway_guests::call::{Call, Reply, SOCKET};

/// How long an agent that works can take: 30 s for the host's answer, which comes when the memory is there, and some for its
/// own.
pub const WAIT: Duration = Duration::from_secs(35);

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How much was granted or taken, bytes; 0 is a refusal. The host counts in sections, so it can be a little more than was
    /// asked for.
    pub granted_bytes: u64,
    /// Why it was not all, where the host says so.
    pub why: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An amount that can't be asked for.
    #[error("{0} bytes: ask for 1 byte to 4 PiB")]
    Amount(u64),
    /// No agent listens there, or it may not be asked.
    #[error("no agent at {}: {source}; does spillway-agent run in this guest?", path.display())]
    Connect {
        /// Where it was looked for.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The time is over. The memory may come all the same.
    #[error("the agent does not reply in time")]
    Timeout,
    /// The agent has ended the connection without a reply.
    #[error("the agent has gone without a reply")]
    Lost,
    /// What came is no reply.
    #[error("the agent's reply is {0}")]
    Reply(spillway_guests::Error),
    /// What came is the reply to something else.
    #[error("the agent's reply is one to another call")]
    Other,
    /// A system call failed.
    #[error("asking the agent: {0}")]
    Io(#[from] io::Error),
}

/// Asks the host for `bytes` more, and waits at most `wait` until they are there.
///
/// # Errors
/// There is no answer; a refusal is one.
pub fn need(socket: &Path, bytes: u64, wait: Duration) -> Result<Answer, Error> {
    answer(socket, &Call::Need { bytes }, bytes, wait)
}

/// Tells the host that `bytes` can be done without, and waits at most `wait` for what it takes.
///
/// # Errors
/// There is no answer; a refusal is one.
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
/// There is no reply, or what came is none.
pub fn ask(socket: &Path, call: &Call, wait: Duration) -> Result<Reply, Error> {
    let line = line::exchange(socket, &call.encode(), wait)?;
    Reply::decode(&line).map_err(Error::Reply)
}
