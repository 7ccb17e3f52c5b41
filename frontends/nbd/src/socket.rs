//! Sockets of both kinds, and who is at the other end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::sockopt;
use spillway_types::Identity;

/// Time without a sign of life after which a TCP peer is asked for one.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Questions without an answer after which the peer counts as gone.
const KEEPALIVE_COUNT: u32 = 8;

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
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
        }
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

/// A connection.
#[derive(Debug)]
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Makes the socket fit for requests and replies.
    pub fn prepare(&self) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
        Ok(())
    }

    /// Sets the longest time that a read or a write may wait.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    /// Ends the connection, whoever waits for it.
    pub fn shutdown(&self, how: Shutdown) {
        // It may have ended by itself.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        };
    }

    /// Who a peer without a certificate is; `loopback_name` is the name of those that connect by TCP
    /// from this host. `None`: nobody can tell.
    pub fn identity<'a>(&self, loopback_name: Option<&'a str>) -> io::Result<Option<Identity<'a>>> {
        match self {
            Self::Unix(stream) => {
                let peer = sockopt::socket_peercred(stream)?;
                let pid = peer.pid.as_raw_nonzero().get();
                let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
                Ok(Some(Identity::Peer { uid, gid, pid }))
            }
            Self::Tcp(stream) => {
                let local = stream.peer_addr()?.ip().to_canonical().is_loopback();
                Ok(loopback_name.filter(|_| local).map(Identity::Name))
            }
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&mut &*stream).read(buffer),
            Socket::Tcp(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
            Socket::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
