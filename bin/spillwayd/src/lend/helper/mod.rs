//! The helper: a privileged process beside the daemon that changes this host's swap space.
//!
//! Swapping onto another host's memory takes swapon(2), `swapoff`, `nvme connect` and the kernel's NBD driver: a daemon
//! that talks to other hosts must not have these privileges. So a separate process has them. It is started before the
//! daemon drops its privileges, and it performs a few fixed operations on devices that it created itself. It ends with
//! the daemon. It ignores signals, because the daemon needs it to stop swapping at its own end.

mod command;
mod protocol;
mod serve;

use std::env;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spillway_kernel_nbd::Disk;
use spillway_nbd::Kernel;

pub use protocol::{Connect, Verb};
pub use serve::run;

/// Environment variable that makes a process the helper.
const MARK: &str = "SPILLWAY_HELPER";

/// Whether this process was started as a helper.
pub fn is_helper() -> bool {
    env::var_os(MARK).is_some()
}

/// The daemon's end.
#[derive(Debug)]
pub struct Helper {
    /// One request at a time.
    socket: Mutex<OwnedFd>,
    child: Child,
}

impl Helper {
    /// Starts the helper. Call it before there are threads, and before privileges are dropped.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start() -> anyhow::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let child = Command::new("/proc/self/exe")
            .env(MARK, "1")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("LISTEN_FDS")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("can't start the helper")?;
        Ok(Self { socket: Mutex::new(ours), child })
    }

    /// Executes a request and returns its result. Waits until it is done; each request has a time
    /// limit of its own.
    ///
    /// # Errors
    /// One line that says what went wrong.
    pub fn ask(&self, verb: &Verb, fds: &[OwnedFd]) -> Result<String, String> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = |error: io::Error| format!("the helper is gone: {error}");
        protocol::send(&*socket, verb, fds).map_err(lost)?;
        let answer: protocol::Answer = protocol::receive(&*socket).map_err(lost)?.0;
        answer
    }
}

impl Kernel for Helper {
    fn connect(&self, disk: &Disk, sockets: &[BorrowedFd<'_>]) -> Result<u32, spillway_nbd::Error> {
        let copies: io::Result<Vec<_>> =
            sockets.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let Disk { bytes, block_bytes, flags, timeout } = *disk;
        let verb = Verb::Attach { bytes, block_bytes, flags, timeout_s: timeout.as_secs() };
        let index = self.ask(&verb, &copies?).map_err(io::Error::other)?;
        Ok(index.parse().map_err(io::Error::other)?)
    }

    fn disconnect(&self, index: u32) -> Result<(), spillway_nbd::Error> {
        let done = self.ask(&Verb::Detach { index }, &[]).map_err(io::Error::other);
        Ok(done.map(|_| ())?)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The helper ends when this end of the socket closes.
        let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}
