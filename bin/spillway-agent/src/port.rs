//! A virtio-serial port to the host: opens it when it appears, and tracks whether the host's side is open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use spillway_guests::Error;
use spillway_guests::agent::{FromGuest, FromHost};
use spillway_guests::line::Lines;

/// Interval at which a missing port or host side is checked.
const LOOKS_EVERY: Duration = Duration::from_millis(200);
/// Most bytes buffered for the host. A host that does not read gets no more.
const OUTGOING_MAX: usize = 16 << 10;
/// Most bytes per read, so that a host that floods the port does not delay the agent's other work.
const INCOMING_MAX: usize = 16 << 10;

/// Events of the port.
#[derive(Debug, PartialEq, Eq)]
pub enum News<T> {
    /// The host sent a message.
    Said(T),
    /// The host's side was closed, or the port is gone.
    Gone,
}

/// A port, open or not, over which the host sends `T`.
#[derive(Debug)]
pub struct Port<T> {
    name: &'static str,
    decode: fn(&[u8]) -> Result<T, Error>,
    path: PathBuf,
    sysfs: PathBuf,
    file: Option<File>,
    /// The host's side is open, as far as is known.
    is_up: bool,
    look_at: Duration,
    lines: Lines,
    outgoing: Vec<u8>,
    /// Lines that were not messages, since the last hello.
    strange: u64,
    last_problem: String,
}

impl<T> Port<T> {
    /// A port at `path`. If that is missing, as in a guest without udev, the port with this name in sysfs. `decode`
    /// parses the host's messages.
    pub fn new(
        path: &Path,
        root: &Path,
        name: &'static str,
        decode: fn(&[u8]) -> Result<T, Error>,
    ) -> Self {
        Self {
            name,
            decode,
            path: path.to_owned(),
            sysfs: root.join("sys/class/virtio-ports"),
            file: None,
            is_up: false,
            look_at: Duration::ZERO,
            lines: Lines::default(),
            outgoing: Vec::new(),
            strange: 0,
            last_problem: String::new(),
        }
    }

    /// The events to poll for; none while the host's side is closed, because poll would return at
    /// once.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        let file = self.file.as_ref().filter(|_| self.is_up)?;
        let write = if self.outgoing.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        Some(PollFd::new(file, PollFlags::IN | write))
    }

    /// When the next check is due, while the host's side is closed.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.is_up).then_some(self.look_at)
    }

    /// Reads, writes, and opens a closed port.
    pub fn go_on(&mut self, now: Duration, mut each: impl FnMut(News<T>)) {
        if !self.is_up {
            if now < self.look_at {
                return;
            }
            self.look_at = now + LOOKS_EVERY;
            if !self.look() {
                return;
            }
            self.is_up = true;
        }
        if let Err(error) = self.read(&mut each).and_then(|()| self.flush()) {
            self.close(now, error.kind() != io::ErrorKind::UnexpectedEof);
            each(News::Gone);
        }
    }

    /// Sends a line without waiting for the host. Returns whether the buffer had space for it.
    pub fn send(&mut self, line: &[u8]) -> bool {
        let has_room = self.is_up && self.outgoing.len() < OUTGOING_MAX;
        if has_room {
            self.outgoing.extend_from_slice(line);
            // Errors show when the port is read.
            let _ = self.flush();
        }
        has_room
    }

    /// The host's side is open, as far as is known.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Terminates a line that an earlier connection may have left incomplete.
    pub fn say_nothing(&mut self) {
        self.outgoing.push(b'\n');
    }

    /// Nothing waits for the host to read it.
    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Whether the host's side is open now.
    fn look(&mut self) -> bool {
        if self.file.is_none() {
            match self.open() {
                Ok(file) => self.file = Some(file),
                Err(error) => {
                    let problem = error.to_string();
                    if problem != self.last_problem {
                        eprintln!(
                            "spillway-agent: {}: {problem}; waiting for it",
                            self.path.display()
                        );
                        self.last_problem = problem;
                    }
                    return false;
                }
            }
            self.last_problem.clear();
        }
        let Some(file) = &self.file else { return false };
        let mut polled = [PollFd::new(file, PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted or not, there is another check.
        let _ = poll(&mut polled, Some(&none));
        let seen = polled[0].revents();
        if seen.intersects(PollFlags::ERR | PollFlags::NVAL) {
            self.file = None;
            return false;
        }
        !seen.contains(PollFlags::HUP)
    }

    fn open(&self) -> io::Result<File> {
        let open = |path: &Path| {
            let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
            OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(path)
        };
        match open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        for entry in fs::read_dir(&self.sysfs)? {
            let entry = entry?;
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == self.name {
                return open(&Path::new("/dev").join(entry.file_name()));
            }
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "no such virtio-serial port"))
    }

    fn read(&mut self, each: &mut impl FnMut(News<T>)) -> io::Result<()> {
        let Self { file: Some(file), lines, strange, decode, .. } = self else { return Ok(()) };
        let mut bytes = [0; 4096];
        let mut held = 0;
        while held < INCOMING_MAX {
            match file.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    held += count;
                    lines.push(&bytes[..count], |line| match line.and_then(*decode) {
                        Ok(message) => each(News::Said(message)),
                        Err(error) => {
                            *strange += 1;
                            if *strange == 1 {
                                eprintln!("spillway-agent: invalid message from the host: {error}");
                            }
                        }
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        while !self.outgoing.is_empty() {
            match file.write(&self.outgoing) {
                Ok(0) => break,
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn close(&mut self, now: Duration, is_broken: bool) {
        if is_broken {
            self.file = None;
        }
        (self.is_up, self.look_at) = (false, now + LOOKS_EVERY);
        (self.lines, self.strange) = (Lines::default(), 0);
        self.outgoing.clear();
    }
}

impl Port<FromHost> {
    /// Sends a message of the agent's.
    pub fn say(&mut self, message: &FromGuest) {
        self.send(&message.encode());
    }
}

#[cfg(test)]
impl Port<FromHost> {
    /// A port over a socket pair, and the host's side.
    pub fn pair() -> (Self, std::os::unix::net::UnixStream) {
        let (guest, host) = std::os::unix::net::UnixStream::pair().unwrap();
        guest.set_nonblocking(true).unwrap();
        let nowhere = Path::new("/nonexistent");
        let mut port = Self::new(nowhere, nowhere, spillway_guests::agent::PORT, FromHost::decode);
        (port.file, port.is_up) = (Some(File::from(std::os::fd::OwnedFd::from(guest))), true);
        (port, host)
    }
}

/// Polls for what `waits` names, until `timeout` at the latest.
pub fn wait(waits: &mut [PollFd<'_>], timeout: Duration) {
    // At least a millisecond: a deadline that has just not been reached must not spin.
    let timeout = timeout.clamp(Duration::from_millis(1), Duration::from_secs(60));
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(60),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // After an interruption, the caller checks everything anyway.
    let _ = poll(waits, Some(&timeout));
}

/// A descriptor that is polled for reading.
pub fn readable<Fd: AsFd>(fd: &Fd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_guests::agent::PORT;

    fn news(port: &mut Port<FromHost>) -> Vec<News<FromHost>> {
        let mut got = Vec::new();
        port.go_on(Duration::from_secs(1), |news| got.push(news));
        got
    }

    #[test]
    fn messages_pass_and_garbage_is_passed_over() {
        let (mut port, mut host) = Port::pair();
        host.write_all(b"\n{\"strange\":1}\n\xff\xfe\n").unwrap();
        host.write_all(&vec![b'x'; 5000]).unwrap();
        host.write_all(b"\n\"online\"\n").unwrap();
        assert_eq!(news(&mut port), [News::Said(FromHost::Online)]);
        port.say(&FromGuest::Give { id: 1, bytes: 2 });
        let mut bytes = [0; 100];
        let count = host.read(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"{\"give\":{\"id\":1,\"bytes\":2}}\n");
    }

    #[test]
    fn a_host_that_goes_is_noticed_once() {
        let (mut port, host) = Port::pair();
        drop(host);
        assert_eq!(news(&mut port), [News::Gone]);
        assert!(port.interest().is_none());
        assert_eq!(port.deadline(), Some(Duration::from_millis(1200)));
        assert_eq!(news(&mut port), []);
    }

    #[test]
    fn a_host_that_does_not_read_is_not_waited_for() {
        let (mut port, _host) = Port::pair();
        for id in 0..100_000 {
            port.say(&FromGuest::Give { id, bytes: 2 });
        }
        assert!(port.outgoing.len() < OUTGOING_MAX + 100);
        assert!(!port.is_flushed());
    }

    #[test]
    fn a_port_that_is_missing_is_looked_for_again() {
        let nowhere = Path::new("/nonexistent");
        let mut port = Port::new(nowhere, nowhere, PORT, FromHost::decode);
        let mut got = Vec::new();
        port.go_on(Duration::from_secs(1), |news| got.push(news));
        assert_eq!(got, []);
        assert_eq!(port.deadline(), Some(Duration::from_millis(1200)));
    }

    #[test]
    fn half_a_line_of_a_host_that_went_is_not_joined_with_the_next_ones() {
        let (mut port, mut host) = Port::pair();
        host.write_all(b"\"onl").unwrap();
        assert_eq!(news(&mut port), []);
        drop(host);
        assert_eq!(news(&mut port), [News::Gone]);
        let (other, mut host) = Port::pair();
        (port.file, port.is_up) = (other.file, true);
        host.write_all(b"ine\"\n\"online\"\n").unwrap();
        assert_eq!(news(&mut port), [News::Said(FromHost::Online)]);
        assert_eq!(port.strange, 1);
    }

    #[test]
    fn a_line_that_comes_in_parts_is_one_message() {
        let (mut port, mut host) = Port::pair();
        let line = FromHost::Report { id: 7 }.encode();
        for (at, byte) in line.iter().enumerate() {
            host.write_all(&[*byte]).unwrap();
            let said = news(&mut port);
            assert_eq!(!said.is_empty(), at + 1 == line.len());
        }
    }

    #[test]
    fn a_host_that_floods_is_read_to_a_bound_at_a_time() {
        let (mut port, mut host) = Port::pair();
        host.set_nonblocking(true).unwrap();
        let (line, mut sent) = (b"\"online\"\n", 0);
        while let Ok(count) = host.write(&line.repeat(1000)) {
            sent += count;
        }
        assert!(sent > 2 * INCOMING_MAX, "{sent}");
        let first = news(&mut port).len();
        assert!((INCOMING_MAX / line.len()..=INCOMING_MAX / line.len() + 1).contains(&first));
        assert!(news(&mut port).len().abs_diff(first) < 2);
    }

    #[test]
    fn what_is_said_is_kept_until_it_is_read_and_no_message_is_cut() {
        let (mut port, mut host) = Port::pair();
        let message = FromGuest::Give { id: 1, bytes: 2 };
        let mut taken = 0;
        while port.send(&message.encode()) {
            taken += 1;
        }
        let mut heard = Vec::new();
        host.set_nonblocking(true).unwrap();
        while !port.is_flushed() || heard.len() < taken * message.encode().len() {
            let _ = host.read_to_end(&mut heard);
            assert_eq!(news(&mut port), []);
        }
        assert_eq!(heard, message.encode().repeat(taken));
    }
}
