//! Gets a region: from a daemon on this host, or from this guest's agent, which lends a window.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg, send, socket_with,
};
use spillway_ring::Region;
use spillway_wire::ring::{Geometry, Hello, PART_VERSION, VERSION, Welcome};

use crate::Error;

/// What a [`Ring`](crate::Ring) connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A daemon, at this socket.
    Daemon(PathBuf),
    /// The agent of the guest that this program runs in.
    Agent {
        /// Its socket.
        path: PathBuf,
        /// Huge pages of 2 MiB of the first window, 1 to 9; the others have one. The first window limits the length of
        /// values.
        pages: usize,
    },
}

impl Peer {
    /// The socket.
    pub fn path(&self) -> &Path {
        match self {
            Self::Daemon(path) | Self::Agent { path, .. } => path,
        }
    }

    /// The ring that fills a window of this many huge pages.
    pub(super) fn filling(&self, depth: u16, pages: usize) -> Result<Geometry, Error> {
        Geometry::filling(depth, pages).map_err(|_| Error::Connect {
            peer: self.path().display().to_string(),
            source: std::io::ErrorKind::InvalidInput.into(),
        })
    }
}

/// A region and the socket that it came over.
#[derive(Debug)]
pub struct Connected {
    pub socket: OwnedFd,
    pub region: Region,
    /// Distinguishes runs of the daemon.
    pub instance: u64,
}

/// Repeats a call that a signal interrupts. The kernel does not restart calls on a socket that has a timeout.
fn uninterrupted<T>(
    timeout: Duration,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let start = Instant::now();
    loop {
        match call() {
            // Each call has the timeout anew.
            Err(Errno::INTR) if start.elapsed() < timeout => {}
            Err(Errno::INTR) => return Err(Errno::AGAIN),
            done => return done,
        }
    }
}

/// Connects, sends the hello, and receives the region. `timeout` applies to the connection and to the welcome, and
/// stays set on the socket.
pub fn connect(
    peer: &Peer,
    depth: u16,
    data_bytes: u32,
    timeout: Duration,
) -> Result<Connected, Error> {
    let path = peer.path();
    let failed =
        |source: std::io::Error| Error::Connect { peer: path.display().to_string(), source };
    let io = |errno: Errno| failed(errno.into());
    let (kind, version, stranger) = match peer {
        Peer::Daemon(_) => {
            (SocketType::SEQPACKET, VERSION, "the listener there is not a Spillway daemon")
        }
        // Its other messages are lines of text.
        Peer::Agent { .. } => {
            (SocketType::STREAM, PART_VERSION, "the listener there lends no windows")
        }
    };
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map_err(io)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(timeout)).map_err(io)?;
    // A listener that does not accept has room for some connections; a further one waits.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout)).map_err(io)?;
    let address = SocketAddrUnix::new(path).map_err(io)?;
    uninterrupted(timeout, || rustix::net::connect(&socket, &address)).map_err(io)?;
    // A client that is refused at once finds the socket closed, with the reason in it.
    let hello = Hello { version, depth, data_bytes }.encode();
    let sent = uninterrupted(timeout, || send(&socket, &hello, SendFlags::NOSIGNAL));
    let mut bytes = [0; Welcome::BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let mut receive = || uninterrupted(timeout, || recvmsg(&socket, parts, &mut control, flags));
    // A daemon that closes the socket without reading the hello resets the connection. The reset is
    // reported once, before the reason that it sent.
    let received = match receive() {
        Err(Errno::CONNRESET) => receive(),
        done => done,
    };
    let length = received.map_err(io)?.bytes;
    if length == 0 {
        sent.map_err(io)?;
        return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
    }
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let wrong = || failed(std::io::Error::other(stranger));
    let (geometry, instance, first) = match Welcome::decode(&bytes[..length]) {
        Ok(Welcome::Granted { geometry, instance }) => (geometry, instance, 0),
        Ok(Welcome::Part { geometry, instance, first }) => (geometry, instance, first.get()),
        Ok(Welcome::Refused(reason)) => {
            return Err(Error::Refused { peer: path.display().to_string(), why: reason.text() });
        }
        Err(_) => return Err(wrong()),
    };
    let file = file.ok_or_else(wrong)?;
    let region = match peer {
        Peer::Daemon(_) if first == 0 => Region::map(&file, geometry),
        Peer::Daemon(_) => return Err(wrong()),
        Peer::Agent { .. } => Region::map_window(&file, first, geometry),
    };
    Ok(Connected { socket, region: region.map_err(failed)?, instance })
}
