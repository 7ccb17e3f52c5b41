//! TCP sockets as pipes.
//!
//! System calls go through rustix, which needs neither errno nor thread-local storage, so the pager's tasks can use
//! these pipes too. Only host names are looked up with the standard library, when a session is made.

use core::sync::atomic::{AtomicU64, Ordering};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect, ipproto, recv,
    send, shutdown, socket_with,
};

use super::pipe::{Closed, Dial, Pipe};
use super::session::now_us;
use crate::Error;

/// Connects to the addresses of a host.
#[derive(Clone, Debug)]
pub struct TcpDial {
    addresses: Vec<SocketAddr>,
}

impl TcpDial {
    /// Looks `host` up. Later connects try its addresses in turn.
    ///
    /// # Errors
    /// [`Error::Connect`] when the name has no address.
    pub fn new(host: &str, port: u16) -> Result<Self, Error> {
        let connect = |source| Error::Connect { peer: format!("{host}:{port}"), source };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(connect)?.collect();
        if addresses.is_empty() {
            return Err(connect(std::io::ErrorKind::AddrNotAvailable.into()));
        }
        Ok(Self { addresses })
    }
}

impl Dial for TcpDial {
    type Pipe = TcpPipe;

    fn dial(&self, wait_us: u64) -> Result<TcpPipe, Closed> {
        let each_us = (wait_us / self.addresses.len() as u64).max(1_000);
        let mut last = Closed::TimedOut;
        for address in &self.addresses {
            match dial_address(address, each_us) {
                Ok(pipe) => return Ok(pipe),
                Err(closed) => last = closed,
            }
        }
        Err(last)
    }
}

fn dial_address(address: &SocketAddr, wait_us: u64) -> Result<TcpPipe, Closed> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match connect(&socket, address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let until_us = now_us() + wait_us;
            // A signal ends a wait early.
            while !poll_socket(&socket, PollFlags::OUT, until_us.saturating_sub(now_us())) {
                if now_us() >= until_us {
                    return Err(Closed::TimedOut);
                }
            }
            sockopt::socket_error(&socket)??;
        }
        Err(errno) => return Err(errno.into()),
    }
    sockopt::set_tcp_nodelay(&socket, true)?;
    // Make the socket blocking: then a receive waits in one system call.
    rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::empty())?;
    Ok(TcpPipe { socket, receive_timeout_us: AtomicU64::new(0) })
}

/// Waits for `events`. Returns whether any came.
fn poll_socket(socket: &OwnedFd, events: PollFlags, wait_us: u64) -> bool {
    let wait = Timespec {
        tv_sec: (wait_us / 1_000_000) as i64,
        tv_nsec: (wait_us % 1_000_000 * 1_000) as i64,
    };
    let mut watched = [PollFd::new(socket, events)];
    matches!(poll(&mut watched, Some(&wait)), Ok(1..))
}

impl From<Errno> for Closed {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }
}

/// One TCP connection.
#[derive(Debug)]
pub struct TcpPipe {
    socket: OwnedFd,
    /// The current SO_RCVTIMEO, so that a receive with the same timeout as the last one takes one system call. 0: not
    /// set yet.
    receive_timeout_us: AtomicU64,
}

impl TcpPipe {
    /// Waits up to `wait_us` until there may be bytes to receive.
    pub(super) fn wait_bytes(&self, wait_us: u64) {
        poll_socket(&self.socket, PollFlags::IN, wait_us);
    }
}

impl Pipe for TcpPipe {
    fn send(&self, bytes: &[u8]) -> Result<usize, Closed> {
        match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    fn receive(&self, into: &mut [u8], wait_us: u64) -> Result<usize, Closed> {
        let flags = if wait_us == 0 {
            RecvFlags::DONTWAIT
        } else {
            if self.receive_timeout_us.load(Ordering::Relaxed) != wait_us {
                let timeout = core::time::Duration::from_micros(wait_us);
                sockopt::set_socket_timeout(&self.socket, Timeout::Recv, Some(timeout))?;
                self.receive_timeout_us.store(wait_us, Ordering::Relaxed);
            }
            RecvFlags::empty()
        };
        match recv(&self.socket, into, flags) {
            Ok((0, _)) => Err(Closed::ByPeer),
            Ok((received, _)) => Ok(received),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    fn wait_room(&self, or_bytes: bool, wait_us: u64) {
        let bytes = if or_bytes { PollFlags::IN } else { PollFlags::empty() };
        poll_socket(&self.socket, PollFlags::OUT | bytes, wait_us);
    }

    fn shut(&self) {
        // It fails if the connection has already ended.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}
