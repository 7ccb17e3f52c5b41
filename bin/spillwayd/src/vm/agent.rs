//! A channel to the agent: a Unix socket whose other end is a virtio-serial port of the guest.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use spillway_guests::Error;
use spillway_guests::agent::{FromGuest, FromHost};
use spillway_guests::line::Lines;

/// Most bytes buffered for a guest that does not read. Further messages are dropped, and the agent asks
/// again.
const WAITING_BYTES_MAX: usize = 16 << 10;
/// Most bytes per read, so that a guest that floods the channel delays nothing else.
const READ_BYTES_MAX: usize = 16 << 10;
/// Most bytes read per second, many times what an agent sends. A guest that floods the channel waits, and costs the
/// host almost nothing.
const SECOND_BYTES_MAX: usize = 64 << 10;
/// Interval of greetings: an agent that has just started sends nothing until it is greeted.
const SILENCE: Duration = Duration::from_secs(5);

/// A connected channel.
pub struct Channel {
    stream: UnixStream,
    lines: Lines,
    waiting: VecDeque<u8>,
    /// When a message from the agent arrived, or the agent was greeted, last.
    heard: Instant,
    /// When counting of bytes began, and how many were read since.
    second: Instant,
    second_bytes: usize,
    /// Whether the agent ever sent a message on this connection.
    pub has_spoken: bool,
    /// Lines that were not messages.
    pub garbled: u64,
}

impl Channel {
    /// Connects.
    ///
    /// # Errors
    /// No process listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            lines: Lines::default(),
            waiting: VecDeque::new(),
            heard: Instant::now(),
            second: Instant::now(),
            second_bytes: 0,
            has_spoken: false,
            garbled: 0,
        })
    }

    /// The descriptor to poll; for writing only while bytes are buffered.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a message, as far as the guest reads it.
    ///
    /// # Errors
    /// The channel is closed.
    pub fn tell(&mut self, said: &FromHost) -> io::Result<()> {
        if matches!(said, FromHost::Hello { .. }) {
            self.heard = Instant::now();
        }
        self.send(said.encode()).map(drop)
    }

    /// Sends a line, as far as the guest reads it. Returns whether the buffer had space for it.
    ///
    /// # Errors
    /// The channel is closed.
    pub fn send(&mut self, line: Vec<u8>) -> io::Result<bool> {
        let has_room = self.waiting.len() + line.len() <= WAITING_BYTES_MAX;
        if has_room {
            self.waiting.extend(line);
        }
        self.flush().map(|()| has_room)
    }

    /// Sends buffered bytes.
    ///
    /// # Errors
    /// The channel is closed.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let (front, _) = self.waiting.as_slices();
            match self.stream.write(front) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => drop(self.waiting.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the guest has used up this second's bytes: the channel is read again in the next
    /// second.
    pub fn is_over(&self) -> bool {
        self.second_bytes >= SECOND_BYTES_MAX && self.second.elapsed() < Duration::from_secs(1)
    }

    /// Reads messages, up to a bound at a time.
    ///
    /// # Errors
    /// The channel is closed.
    pub fn read(&mut self) -> io::Result<Vec<FromGuest>> {
        self.read_as(FromGuest::decode)
    }

    /// Reads messages of another protocol.
    ///
    /// # Errors
    /// The channel is closed.
    pub fn read_as<T>(&mut self, decode: fn(&[u8]) -> Result<T, Error>) -> io::Result<Vec<T>> {
        if self.is_over() {
            return Ok(Vec::new());
        }
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.second_bytes) = (Instant::now(), 0);
        }
        let mut bytes = [0; READ_BYTES_MAX];
        let count = match self.stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                0
            }
            Err(error) => return Err(error),
        };
        self.second_bytes += count;
        let (mut said, mut garbled) = (Vec::new(), 0);
        self.lines.push(&bytes[..count], |line| match line.and_then(decode) {
            Ok(message) => said.push(message),
            Err(_) => garbled += 1,
        });
        self.garbled += garbled;
        if !said.is_empty() {
            self.heard = Instant::now();
            self.has_spoken = true;
        }
        Ok(said)
    }

    /// Whether to greet the agent again, because it is silent. `interval` is the time between its reports.
    pub fn is_silent(&self, interval: Duration) -> bool {
        self.heard.elapsed() > SILENCE.max(interval * 3)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A channel, and the guest's end of it.
    fn channel() -> (Channel, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let channel = Channel::connect(&path).unwrap();
        (channel, listener.accept().unwrap().0)
    }

    #[test]
    fn lines_are_messages_and_what_is_none_is_counted() {
        let (mut channel, mut guest) = channel();
        assert_eq!(channel.read().unwrap(), []);
        guest.write_all(b"{\"give\":{\"id\":1,\"bytes\":2}}\nnonsense\n{\"give\":").unwrap();
        assert_eq!(channel.read().unwrap(), [FromGuest::Give { id: 1, bytes: 2 }]);
        assert!(channel.has_spoken);
        assert_eq!(channel.garbled, 1);
        guest.write_all(b"{\"id\":3,\"bytes\":4}}\n").unwrap();
        assert_eq!(channel.read().unwrap(), [FromGuest::Give { id: 3, bytes: 4 }]);
        // Closing alone would not do: another test of this program may fork, and its child holds the descriptor until it ends.
        guest.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(channel.read().is_err());
    }

    #[test]
    fn a_guest_that_floods_is_read_no_further_in_this_second() {
        let (mut channel, mut guest) = channel();
        guest.set_nonblocking(true).unwrap();
        let mut read = 0;
        while !channel.is_over() {
            let _ = guest.write(&[b'x'; 4096]);
            let before = channel.second_bytes;
            channel.read().unwrap();
            read += channel.second_bytes - before;
        }
        assert!((SECOND_BYTES_MAX..SECOND_BYTES_MAX + READ_BYTES_MAX).contains(&read), "{read}");
        let _ = guest.write(&[b'x'; 4096]);
        channel.read().unwrap();
        assert!(channel.is_over());
        channel.second -= Duration::from_secs(1);
        let former = channel.second;
        channel.read().unwrap();
        assert!(!channel.is_over());
        assert!(channel.second >= former + Duration::from_secs(1), "no new second has begun");
    }

    #[test]
    fn a_guest_that_does_not_read_holds_nobody_up() {
        let (mut channel, _guest) = channel();
        let said = FromHost::Online;
        for _ in 0..1_000_000 {
            channel.tell(&said).unwrap();
            if channel.has_waiting()
                && channel.waiting.len() + said.encode().len() > WAITING_BYTES_MAX
            {
                return;
            }
        }
        panic!("a socket that takes everything");
    }

    #[test]
    fn a_greeting_counts_as_a_word_for_a_while() {
        let (mut channel, _guest) = channel();
        assert!(!channel.is_silent(Duration::ZERO));
        channel.heard -= SILENCE + Duration::from_millis(1);
        assert!(channel.is_silent(Duration::ZERO));
        assert!(!channel.is_silent(SILENCE));
        let profile = Default::default();
        let hello = FromHost::Hello {
            version: 1,
            interval_ms: 500,
            reserve_bytes: 0,
            most_bytes: 0,
            profile,
        };
        channel.tell(&hello).unwrap();
        assert!(!channel.is_silent(Duration::ZERO));
    }
}
