//! Sends one line over a Unix socket and reads one back, with one deadline for both.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use spillway_guests::line::LINE_BYTES_MAX;

use crate::Error;

/// Time between two attempts to connect to an agent whose listen queue is full. The kernel does not report when the
/// queue has space again.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Sends `line`, and returns the reply without its line end.
pub fn exchange(path: &Path, line: &[u8], wait: Duration) -> Result<Vec<u8>, Error> {
    // A deadline beyond the clock's range means no deadline.
    let until = Instant::now().checked_add(wait);
    let socket = open(path, until)?;
    // An agent that refuses the connection has sent the reason and reads nothing, so a failed write is no error.
    let _ = write(&socket, line, until)?;
    read(&socket, until)
}

fn open(path: &Path, until: Option<Instant>) -> Result<OwnedFd, Error> {
    let failed = |error: Errno| Error::Connect { path: path.to_owned(), source: error.into() };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(io::Error::from)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) => std::thread::sleep(left(until)?.min(AGAIN_AFTER)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Whether all of it was sent.
fn write(socket: &OwnedFd, mut line: &[u8], until: Option<Instant>) -> Result<bool, Error> {
    while !line.is_empty() {
        // No SIGPIPE: the program may not expect it.
        match send(socket, line, SendFlags::NOSIGNAL) {
            Ok(count) => line = &line[count..],
            Err(Errno::AGAIN) => ready(socket, PollFlags::OUT, until)?,
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Ok(true)
}

fn read(socket: &OwnedFd, until: Option<Instant>) -> Result<Vec<u8>, Error> {
    let (mut line, mut bytes) = (Vec::new(), [0; LINE_BYTES_MAX + 1]);
    loop {
        match rustix::io::read(socket, &mut bytes) {
            Ok(0) | Err(Errno::CONNRESET) => return Err(Error::Lost),
            Ok(count) => line.extend_from_slice(&bytes[..count]),
            Err(Errno::AGAIN) => {
                ready(socket, PollFlags::IN, until)?;
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(Error::Reply(spillway_guests::Error::Long));
        }
        // Bytes that arrive slowly do not extend the deadline.
        left(until)?;
    }
}

/// Waits until the socket is readable or writable, or the other side has closed it.
fn ready(socket: &OwnedFd, what: PollFlags, until: Option<Instant>) -> Result<(), Error> {
    let timeout = until.map(|_| left(until)).transpose()?;
    let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut [PollFd::new(socket, what)], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

fn left(until: Option<Instant>) -> Result<Duration, Error> {
    let Some(until) = until else { return Ok(Duration::MAX) };
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Error::Timeout) } else { Ok(left) }
}
