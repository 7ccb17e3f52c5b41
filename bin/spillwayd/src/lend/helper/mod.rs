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
use std::time::Duration;

use anyhow::Context;
use spillway_kernel_nbd::Disk;
use spillway_lending_driver::HelperState;
use spillway_nbd::Kernel;

pub use protocol::{Connect, Verb};
pub use serve::run;

/// Environment variable that makes a process the helper.
const MARK: &str = "SPILLWAY_HELPER";

/// Whether this process was started as a helper.
pub fn is_helper() -> bool {
    env::var_os(MARK).is_some()
}

/// Time beyond a request's own limit until the daemon stops waiting for its answer.
const MARGIN: Duration = Duration::from_secs(5);

/// The daemon's end.
#[derive(Debug)]
pub struct Helper {
    socket: OwnedFd,
    child: Child,
    /// Where the answers arrive that did not come in time.
    late: Mutex<Vec<OwnedFd>>,
}

impl Helper {
    /// Starts the helper. Call it before there are threads, and before privileges are dropped.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start() -> anyhow::Result<Self> {
        let (ours, theirs) = protocol::pair()?;
        let child = Command::new("/proc/self/exe")
            .env(MARK, "1")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("LISTEN_FDS")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("can't start the helper")?;
        Ok(Self { socket: ours, child, late: Mutex::default() })
    }

    /// Executes a request and returns its result. Waits until it is done, a little longer than the request's limit.
    /// Requests of several threads do not wait for each other here, and swapon and swapoff delay no other in the helper.
    ///
    /// # Errors
    /// One line that says what went wrong.
    pub fn ask(&self, verb: &Verb, fds: Vec<OwnedFd>) -> Result<String, String> {
        self.ask_within(verb, fds, verb.limit() + MARGIN)
    }

    fn ask_within(
        &self,
        verb: &Verb,
        mut fds: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<String, String> {
        let lost = |error: io::Error| format!("the helper is gone: {error}");
        // Each request has a socket for its answer: one that comes too late is nobody else's.
        let (ours, theirs) = protocol::pair().map_err(|error| error.to_string())?;
        fds.push(theirs);
        let sent = protocol::send(&self.socket, verb, &fds);
        drop(fds);
        let is_there = match sent {
            Ok(()) => protocol::wait(&ours, limit).map_err(|error| error.to_string())?,
            // It has not even taken the requests before this one.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => return Err(lost(error)),
        };
        if !is_there {
            self.late.lock().unwrap_or_else(PoisonError::into_inner).push(ours);
            let name = verb.name();
            return Err(format!("the helper does not answer: {name}, {} s", limit.as_secs()));
        }
        let (answer, _) = protocol::receive::<protocol::Answer>(&ours).map_err(lost)?;
        answer
    }

    /// Whether an answer is still missing.
    fn is_silent(&self) -> bool {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.retain(|asked| matches!(protocol::wait(asked, Duration::ZERO), Ok(false)));
        !late.is_empty()
    }

    /// Whether it is there, and answers.
    pub fn state(&self) -> HelperState {
        // It sends nothing here, so what there is to read is its end.
        match protocol::wait(&self.socket, Duration::ZERO) {
            Ok(false) if self.is_silent() => HelperState::Silent,
            Ok(false) => HelperState::Ok,
            _ => HelperState::Gone,
        }
    }
}

impl Kernel for Helper {
    fn connect(&self, disk: &Disk, sockets: &[BorrowedFd<'_>]) -> Result<u32, spillway_nbd::Error> {
        let copies: io::Result<Vec<_>> =
            sockets.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let Disk { bytes, block_bytes, flags, timeout } = *disk;
        let verb = Verb::Attach { bytes, block_bytes, flags, timeout_s: timeout.as_secs() };
        let index = self.ask(&verb, copies?).map_err(io::Error::other)?;
        Ok(index.parse().map_err(io::Error::other)?)
    }

    fn disconnect(&self, index: u32) -> Result<(), spillway_nbd::Error> {
        let done = self.ask(&Verb::Detach { index }, Vec::new()).map_err(io::Error::other);
        Ok(done.map(|_| ())?)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The helper ends when this end of the socket closes.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A helper whose other end is this test.
    fn helper() -> (Helper, OwnedFd) {
        let (socket, theirs) = protocol::pair().unwrap();
        let child = Command::new("true").spawn().unwrap();
        (Helper { socket, child, late: Mutex::default() }, theirs)
    }

    fn answer(theirs: &OwnedFd, text: &str) {
        let (_, fds): (Verb, _) = protocol::receive(theirs).unwrap();
        let answer: protocol::Answer = Ok(text.to_owned());
        protocol::send(fds.last().unwrap(), &answer, &[]).unwrap();
    }

    #[test]
    fn an_answer_that_does_not_come_ends_the_wait_and_disturbs_no_later_one() {
        let (helper, theirs) = helper();
        let (detach, no) = (Verb::Detach { index: 1 }, Duration::ZERO);
        assert_eq!(helper.state(), HelperState::Ok);
        let line = helper.ask_within(&detach, Vec::new(), no).unwrap_err();
        assert_eq!(line, "the helper does not answer: nbd disconnect, 0 s");
        assert_eq!(helper.state(), HelperState::Silent);
        // The late answer is nobody's, but it is a sign of life.
        answer(&theirs, "late");
        assert_eq!(helper.state(), HelperState::Ok);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&theirs, "mine"));
            assert_eq!(helper.ask(&detach, Vec::new()), Ok("mine".to_owned()));
        });
        assert_eq!(helper.state(), HelperState::Ok);
    }

    #[test]
    fn the_end_of_the_helper_ends_every_wait() {
        let (helper, theirs) = helper();
        let off = Verb::SwapOff { path: "/dev/nbd0".into(), timeout_s: 3600 };
        std::thread::scope(|scope| {
            let asks = [0; 2].map(|_| scope.spawn(|| helper.ask(&off, Vec::new())));
            // One request has arrived, and one perhaps not yet.
            let taken: (Verb, _) = protocol::receive(&theirs).unwrap();
            drop((taken, theirs));
            for asked in asks {
                assert!(asked.join().unwrap().unwrap_err().starts_with("the helper is gone: "));
            }
        });
        assert_eq!(helper.state(), HelperState::Gone);
        assert!(helper.ask(&off, Vec::new()).is_err());
    }

    #[test]
    fn requests_that_the_helper_does_not_take_are_not_waited_for() {
        let (helper, _theirs) = helper();
        let detach = Verb::Detach { index: 1 };
        let full = || helper.ask_within(&detach, Vec::new(), Duration::ZERO).unwrap_err();
        // There is room for some, and other tests count this process's descriptors.
        rustix::net::sockopt::set_socket_send_buffer_size(&helper.socket, 4096).unwrap();
        for _ in 0..50 {
            assert!(full().starts_with("the helper does not answer: nbd disconnect"));
        }
    }
}
