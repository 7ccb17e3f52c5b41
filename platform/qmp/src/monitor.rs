//! A connection to a monitor: lines, ids and events.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use serde::Deserialize;
use serde_json::{Value, json};
use spillway_platform::sys::peer_credentials;

use crate::GREETING_WAIT;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::line::LineBuffer;

/// Time between two attempts to connect while QEMU's listen queue is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Most bytes of one read.
const READ_BYTES: usize = 16 << 10;
/// Most reads of one [`Monitor::pump`], so that a flood of events does not block the caller.
const PUMP_READS: usize = 16;
/// Most characters of a text from QEMU; the rest is dropped.
const TEXT_CHARS_MAX: usize = 400;

/// A client of one VM's monitor.
#[derive(Debug)]
pub struct Monitor {
    socket: OwnedFd,
    received: LineBuffer,
    events: Events,
    /// The ids of the first and the last command. Ids count up from the time of the connection in microseconds. No
    /// client sends a command each microsecond, so ids of two connections never overlap.
    first_id: u64,
    last_id: u64,
    /// QEMU has answered on this connection.
    is_answered: bool,
    /// The connection is unusable: every call returns [`Error::Closed`].
    closed: bool,
}

/// A line from QEMU.
#[derive(Deserialize)]
struct Message {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    event: Option<String>,
    data: Option<Value>,
    id: Option<Value>,
    #[serde(default, rename = "return", deserialize_with = "present")]
    answer: Option<Value>,
    error: Option<Refusal>,
}

/// QEMU's error.
#[derive(Deserialize)]
struct Refusal {
    class: String,
    desc: String,
}

/// The result of a command.
type Outcome = Result<Value, Refusal>;

impl Message {
    /// Its result, if it is an answer.
    fn outcome(self) -> Option<Outcome> {
        match (self.answer, self.error) {
            (Some(answer), None) => Some(Ok(answer)),
            (None, Some(refusal)) => Some(Err(refusal)),
            _ => None,
        }
    }
}

impl Monitor {
    /// Connects, waits for the greeting and leaves the protocol's negotiation mode.
    ///
    /// # Errors
    /// [`Error::Absent`]; [`Error::Held`] without a greeting for [`GREETING_WAIT`]; those of [`Self::execute`].
    pub fn connect(path: &Path, deadline: Instant) -> Result<Self, Error> {
        let patience = deadline.min(Instant::now() + GREETING_WAIT);
        let held = || Error::Held { path: path.to_owned() };
        let socket = match connect_before(path, patience) {
            Err(Error::TimedOut { .. }) if patience < deadline => return Err(held()),
            socket => socket?,
        };
        let mut monitor = Self::on(socket);
        match monitor.greet(patience, deadline) {
            Err(Error::TimedOut { .. }) if patience < deadline && monitor.received.is_empty() => {
                return Err(held());
            }
            greeted => greeted?,
        }
        monitor.execute("qmp_capabilities", Value::Null, deadline)?;
        Ok(monitor)
    }

    fn on(socket: OwnedFd) -> Self {
        let (received, events) = (LineBuffer::default(), Events::default());
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last_id = since_1970.as_micros() as u64;
        let first_id = last_id + 1;
        Self { socket, received, events, first_id, last_id, is_answered: false, closed: false }
    }

    /// Sends a command and waits for its answer. Queues events that arrive meanwhile. [`Value::Null`] means no
    /// arguments.
    ///
    /// # Errors
    /// [`Error::Refused`] if QEMU answers with an error; [`Error::TimedOut`], after which a late answer is dropped;
    /// [`Error::Closed`], [`Error::Garbage`], [`Error::LineTooLong`], [`Error::Io`], after which every call returns
    /// [`Error::Closed`].
    pub fn execute(
        &mut self,
        command: &str,
        arguments: Value,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let outcome = self.check(|monitor| monitor.try_execute(command, arguments, deadline))?;
        outcome.map_err(|refusal| Error::Refused {
            command: command.to_owned(),
            class: one_line(&refusal.class),
            text: one_line(&refusal.desc),
        })
    }

    /// Reads and queues the events that have arrived, without waiting. A poll loop calls this when [`AsFd::as_fd`] is
    /// readable.
    ///
    /// # Errors
    /// Those of [`Self::execute`], except [`Error::Refused`] and [`Error::TimedOut`].
    pub fn pump(&mut self) -> Result<(), Error> {
        self.check(|monitor| {
            for _ in 0..PUMP_READS {
                let more = monitor.receive()?;
                while monitor.next_answer()?.is_some() {}
                if !more {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Takes the queued events.
    pub fn events(&mut self) -> Events {
        self.events.take()
    }

    /// The process that listens on the socket: QEMU, or the process that created the socket for it. None if the
    /// kernel does not report it, as for a process outside this one's namespace.
    #[must_use]
    pub fn peer_pid(&self) -> Option<u32> {
        let peer = peer_credentials(&self.socket).ok()?;
        u32::try_from(peer.pid).ok().filter(|&pid| pid > 0)
    }

    /// Runs a step if the connection is usable, and records if it no longer is.
    pub(crate) fn check<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        let result = step(self);
        self.closed |= result.as_ref().is_err_and(Error::is_final);
        result
    }

    /// Waits for the greeting: until `patience` for its first byte, then until `deadline` for its end.
    fn greet(&mut self, patience: Instant, deadline: Instant) -> Result<(), Error> {
        loop {
            while let Some(message) = self.next_message()? {
                if message.greeting.is_some() {
                    return Ok(());
                }
                // An answer to the previous client may come first.
                if message.outcome().is_none() {
                    return Err(Error::garbage("no greeting"));
                }
            }
            let until = if self.received.is_empty() { patience } else { deadline };
            self.wait(PollFlags::IN, until, "its greeting")?;
            self.receive()?;
        }
    }

    fn try_execute(
        &mut self,
        command: &str,
        arguments: Value,
        deadline: Instant,
    ) -> Result<Outcome, Error> {
        self.last_id += 1;
        let mut request = json!({ "execute": command, "id": self.last_id });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        self.send(format!("{request}\n").as_bytes(), command, deadline)?;
        let mut answered = None;
        loop {
            // Handles all whole lines: the socket is not readable again for lines that were read here.
            while let Some((id, outcome)) = self.next_answer()? {
                if id == self.last_id {
                    answered = Some(outcome);
                }
            }
            if let Some(outcome) = answered {
                return Ok(outcome);
            }
            self.wait(PollFlags::IN, deadline, command)?;
            self.receive()?;
        }
    }

    /// Sends a whole line. If the deadline cuts a line off, the connection becomes unusable.
    fn send(&mut self, mut line: &[u8], command: &str, deadline: Instant) -> Result<(), Error> {
        let whole = line.len();
        while !line.is_empty() {
            match send(&self.socket, line, SendFlags::NOSIGNAL) {
                Ok(sent) => line = &line[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let waited = self.wait(PollFlags::OUT, deadline, command);
                    self.closed |= waited.is_err() && line.len() < whole;
                    waited?;
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads available bytes once; false if there are none.
    fn receive(&mut self) -> Result<bool, Error> {
        let mut bytes = [0; READ_BYTES];
        match recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => Err(Error::Closed),
            Ok((length, _)) => {
                self.received.push(&bytes[..length]);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next answer among the whole lines received, with its command's id. Queues the events before it. QEMU
    /// executes a command even if its client has gone, and sends the answer to the next client, ahead of that client's
    /// answers. So answers with foreign ids are skipped until the first answer of this connection; after that they are
    /// an error.
    fn next_answer(&mut self) -> Result<Option<(u64, Outcome)>, Error> {
        while let Some(message) = self.next_message()? {
            if let Some(name) = message.event {
                let data = message.data.unwrap_or_default();
                self.events.push(Event::read(&one_line(&name), data));
                continue;
            }
            let id = message.id.as_ref().and_then(Value::as_u64).unwrap_or(u64::MAX);
            let Some(outcome) = message.outcome() else {
                return Err(Error::garbage("a line that is neither an answer nor an event"));
            };
            if (self.first_id..=self.last_id).contains(&id) {
                self.is_answered = true;
                return Ok(Some((id, outcome)));
            }
            if self.is_answered {
                return Err(Error::garbage("an answer to a command that was not given"));
            }
        }
        Ok(None)
    }

    fn next_message(&mut self) -> Result<Option<Message>, Error> {
        let line = self.received.next_line().map_err(|_| Error::LineTooLong)?;
        let parsed = line.map(serde_json::from_slice).transpose();
        parsed.map_err(|error| Error::garbage(error.to_string()))
    }

    /// Waits until the socket is ready.
    fn wait(&self, ready: PollFlags, deadline: Instant, what: &str) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timed_out = || Error::TimedOut { what: what.to_owned() };
        // Checked even if the socket is always ready: a flood of events must not extend the deadline.
        if left.is_zero() {
            return Err(timed_out());
        }
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, ready)], Some(&timeout)) {
            Ok(0) => Err(timed_out()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket connected to `path`.
fn connect_before(path: &Path, deadline: Instant) -> Result<OwnedFd, Error> {
    let absent = |errno: Errno| Error::Absent { path: path.to_owned(), error: errno.into() };
    let address = SocketAddrUnix::new(path).map_err(absent)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            // The listen queue is full: QEMU accepts no connection while it serves a client.
            Err(Errno::AGAIN) if Instant::now() < deadline => thread::sleep(CONNECT_PAUSE),
            Err(Errno::AGAIN) => return Err(Error::TimedOut { what: "connecting".to_owned() }),
            Err(errno) => return Err(absent(errno)),
        }
    }
}

/// QEMU's text as one line of bounded length.
fn one_line(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.trim().chars().take(TEXT_CHARS_MAX).map(plain).collect()
}

/// Distinguishes `null` from a missing field.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}
