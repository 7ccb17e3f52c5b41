//! A window that a program has or requested: its socket, and the messages on it.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use spillway_wire::ring::{Hello, Reason, WAKE, Welcome};

use super::heard::{Heard, hear};
use super::memory::HeldMemory;

/// A program that wants a window.
#[derive(Debug)]
pub struct Borrower {
    /// Its user.
    pub user: u32,
    /// Its non-blocking socket.
    pub stream: UnixStream,
    /// The ring that it requests.
    pub hello: Hello,
}

impl Borrower {
    /// Refuses it with a reason.
    pub fn refuse(self, reason: Reason) {
        // A new connection has buffer space for it.
        let _ = (&self.stream).write(&Welcome::Refused(reason).encode());
    }
}

/// State of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowState {
    /// The host was asked to serve it, and may answer until this time.
    Asked(Duration),
    /// The program has it.
    Open,
    /// The program no longer has it, but the host may.
    Ending,
}

/// A window, its pages and its program.
#[derive(Debug)]
pub struct Lent {
    pub user: u32,
    pub held: HeldMemory,
    hello: Hello,
    stream: Option<UnixStream>,
    state: WindowState,
}

impl Lent {
    /// Creates a window for a program. The host may answer until this time.
    pub fn new(borrower: Borrower, held: HeldMemory, until: Duration) -> Self {
        let Borrower { user, stream, hello } = borrower;
        Self { user, held, hello, stream: Some(stream), state: WindowState::Asked(until) }
    }

    pub fn is_ending(&self) -> bool {
        self.state == WindowState::Ending
    }

    /// The events to poll for.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        self.stream.as_ref().map(|stream| PollFd::new(stream, PollFlags::IN))
    }

    /// The host's deadline.
    pub fn deadline(&self) -> Option<Duration> {
        match self.state {
            WindowState::Asked(until) => Some(until),
            WindowState::Open | WindowState::Ending => None,
        }
    }

    /// Tells the program that its window has ended: its socket does. If the window lies in the device, the other direction
    /// stays open, because the program may write there until it has closed its socket too.
    pub fn end(&mut self) {
        self.state = WindowState::Ending;
        match &self.stream {
            Some(stream) if self.held.is_on_device() => drop(stream.shutdown(Shutdown::Write)),
            _ => self.stream = None,
        }
    }

    /// Passes the window to the program; returns whether that succeeded.
    pub fn welcome(&mut self, welcome: &Welcome) -> bool {
        let (WindowState::Asked(_), Some(stream)) = (self.state, &self.stream) else {
            return false;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [self.held.as_fd()];
        let bytes = welcome.encode();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let is_sent = control.push(SendAncillaryMessage::ScmRights(&files))
            && sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, flags) == Ok(bytes.len());
        self.state = WindowState::Open;
        is_sent
    }

    /// Refuses the program with a reason.
    pub fn refuse(&mut self, reason: Reason) {
        if let Some(stream) = self.stream.take() {
            Borrower { user: self.user, stream, hello: self.hello }.refuse(reason);
        }
    }

    /// Wakes the program. A full socket contains wake-ups already.
    pub fn wake(&mut self) {
        if let (WindowState::Open, Some(stream)) = (self.state, &mut self.stream) {
            let _ = stream.write(&[WAKE]);
        }
    }

    /// Reads what the program sends.
    pub fn hear(&mut self, now: Duration) -> Heard {
        if matches!(self.state, WindowState::Asked(until) if now >= until) {
            return Heard::HostSilent;
        }
        let Some(stream) = &mut self.stream else { return Heard::Nothing };
        let heard = hear(stream);
        if heard == Heard::Closed {
            self.stream = None;
        }
        match (heard, self.state) {
            (_, WindowState::Ending) | (Heard::Nothing, _) => Heard::Nothing,
            (Heard::Wake, _) => Heard::Wake,
            _ => Heard::Gone,
        }
    }

    /// Its pages, once the host has released them, and its program's socket if that may still write there.
    pub fn into_held(self) -> (HeldMemory, Option<UnixStream>) {
        (self.held, self.stream)
    }

    /// The program, if it still waits, and the pages.
    pub fn into_parts(self) -> (Option<Borrower>, HeldMemory) {
        let Self { user, held, hello, stream, .. } = self;
        (stream.map(|stream| Borrower { user, stream, hello }), held)
    }
}
