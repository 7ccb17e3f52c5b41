//! Sockets of both kinds, and who is at the other end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};
use spillway_platform::sys::{PeerCredentials, peer_credentials};
use spillway_types::{Identity, Peer};

/// Time without a sign of life after which a TCP peer is asked for one.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Questions without an answer after which the peer counts as gone.
const KEEPALIVE_COUNT: u32 = 8;
/// Longest time that a read looks again and again before it sleeps. To be woken costs about half of it.
const POLL: Duration = Duration::from_micros(30);
/// A read that slept for less than this would have been served by looking: the next one looks.
const SHORT_SLEEP: Duration = Duration::from_micros(60);
/// Pauses between two looks: about a microsecond.
const PAUSES: u32 = 32;

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// Processes of this host.
    Unix(UnixListener),
    /// The network.
    Tcp(TcpListener),
}

impl Listener {
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    /// Takes the next connection, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Kind::Unix(stream)),
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Kind::Tcp(stream)),
        }
        .map(|kind| Socket { kind, polls: AtomicBool::new(false) })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[derive(Debug)]
enum Kind {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A connection. While its peer answers fast, a read polls for a moment before it sleeps: then the
/// peer need not wake a thread with each of its requests.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    /// Whether the last wait was short.
    polls: AtomicBool,
}

impl Socket {
    /// A connection to the kernel of this host, or to a test.
    pub const fn unix(stream: UnixStream) -> Self {
        Self { kind: Kind::Unix(stream), polls: AtomicBool::new(false) }
    }

    /// Makes the socket fit for requests and replies.
    pub fn prepare(&self) -> io::Result<()> {
        let Kind::Tcp(stream) = &self.kind else { return Ok(()) };
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
        Ok(())
    }

    /// Sets the longest time that a read or a write may wait.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &self.kind {
            Kind::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Kind::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    /// Ends the connection, whoever waits for it.
    pub fn shutdown(&self, how: Shutdown) {
        // It may have ended by itself.
        let _ = match &self.kind {
            Kind::Unix(stream) => stream.shutdown(how),
            Kind::Tcp(stream) => stream.shutdown(how),
        };
    }

    /// Whose connection this is as long as its peer has not said who it is.
    pub fn peer(&self) -> io::Result<Peer> {
        match &self.kind {
            Kind::Unix(stream) => Ok(Peer::User(peer_credentials(stream)?.uid)),
            Kind::Tcp(stream) => Ok(Peer::at(stream.peer_addr()?.ip())),
        }
    }

    /// Who a peer without a certificate is; `loopback_name` is the name of those that connect by TCP
    /// from this host. `None`: nobody can tell.
    pub fn identity<'a>(&self, loopback_name: Option<&'a str>) -> io::Result<Option<Identity<'a>>> {
        match &self.kind {
            Kind::Unix(stream) => {
                let PeerCredentials { pid, uid, gid } = peer_credentials(stream)?;
                Ok(Some(Identity::Peer { uid, gid, pid }))
            }
            Kind::Tcp(stream) => {
                let local = stream.peer_addr()?.ip().to_canonical().is_loopback();
                Ok(loopback_name.filter(|_| local).map(Identity::Name))
            }
        }
    }
}

impl Socket {
    /// Reads what comes within a moment. `None` when nothing does.
    fn poll(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let began = Instant::now();
        while began.elapsed() < POLL {
            match recv(self, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, got)) => return Ok(Some(got)),
                Err(Errno::AGAIN) => (0..PAUSES).for_each(|_| std::hint::spin_loop()),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(None)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Unix(stream) => stream.as_fd(),
            Kind::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.polls.load(Ordering::Relaxed)
            && let Some(got) = self.poll(buffer)?
        {
            return Ok(got);
        }
        let slept = Instant::now();
        let got = match &self.kind {
            Kind::Unix(stream) => (&mut &*stream).read(buffer),
            Kind::Tcp(stream) => (&mut &*stream).read(buffer),
        };
        self.polls.store(slept.elapsed() < SHORT_SLEEP, Ordering::Relaxed);
        got
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.kind {
            Kind::Unix(stream) => (&mut &*stream).write(bytes),
            Kind::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
