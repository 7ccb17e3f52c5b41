//! Unix and TCP sockets, and the identity of their peers.

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

/// Idle time after which TCP sends keepalive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Number of unanswered probes after which the connection is closed.
const KEEPALIVE_COUNT: u32 = 8;
/// Longest time that a read polls before it sleeps. A wake-up costs about half of it.
const POLL: Duration = Duration::from_micros(30);
/// After a read that slept for less than this, the next read polls.
const SHORT_SLEEP: Duration = Duration::from_micros(60);
/// Number of spin-loop hints between two polls: about a microsecond.
const PAUSES: u32 = 32;

/// The source of connections.
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

    /// Accepts the next connection; `WouldBlock` if there is none.
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

/// A connection. While its peer sends requests in quick succession, a read polls before it sleeps, so that the peer
/// need not wake a thread with each request.
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

    /// Sets the socket's options: no delay and keepalive for TCP.
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

    /// Shuts the connection down, also while another thread waits on it.
    pub fn shutdown(&self, how: Shutdown) {
        // Fails if the connection has already ended.
        let _ = match &self.kind {
            Kind::Unix(stream) => stream.shutdown(how),
            Kind::Tcp(stream) => stream.shutdown(how),
        };
    }

    /// The origin of the connection, known before its peer is identified.
    pub fn peer(&self) -> io::Result<Peer> {
        match &self.kind {
            Kind::Unix(stream) => Ok(Peer::User(peer_credentials(stream)?.uid)),
            Kind::Tcp(stream) => Ok(Peer::at(stream.peer_addr()?.ip())),
        }
    }

    /// The identity of a peer without a certificate. `loopback_name` is the name of peers that connect by TCP from this
    /// host. `None` if the peer can't be identified.
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
    /// Polls for at most [`POLL`]. `None` if nothing arrives in that time.
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
