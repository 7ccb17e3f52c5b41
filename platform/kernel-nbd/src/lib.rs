//! The kernel's NBD driver: connected sockets become a disk `/dev/nbdN`.
//!
//! It uses generic netlink (Linux 4.12, uapi/linux/nbd-netlink.h). Unlike the ioctls, netlink needs no thread that
//! sleeps in the kernel for each disk, and it finds a free disk itself. This crate sets the disk's size and flags. It
//! does not speak the protocol on the sockets, NBD's transmission phase.

#![forbid(unsafe_code)]

mod message;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use crate::message::{Answer, Message, answers};

/// Generic netlink's control family, its command and attributes (uapi/linux/genetlink.h).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Commands and attributes of the family `nbd` (uapi/linux/nbd-netlink.h).
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const CLIENT_FLAGS: u16 = 6;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const SOCKET_ITEM: u16 = 1;
const SOCKET_DESCRIPTOR: u16 = 1;

/// Most bytes of an answer.
const ANSWER_BYTES: usize = 8 << 10;
/// Time to wait for an answer. The kernel answers while it handles the message, so no answer comes later than this.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Most sockets of a disk.
pub const SOCKETS_MAX: usize = 64;

/// The reason why a disk can't be created or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no NBD.
    #[error("the kernel has no NBD driver: run 'modprobe nbd'")]
    NoDriver,
    /// The driver refused.
    #[error("the kernel's NBD driver refused to {what}: {error}")]
    Refused {
        /// The request.
        what: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// The answer is invalid.
    #[error("the kernel's NBD driver gave no disk")]
    NoDisk,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A disk's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Its length.
    pub bytes: u64,
    /// Its logical block: 512 to 4096.
    pub block_bytes: u32,
    /// NBD's transmission flags.
    pub flags: u16,
    /// Time after which the driver fails a request; fractions of a second are dropped.
    pub timeout: Duration,
}

/// Creates a kernel disk with a connection over each socket, and returns the number N of `/dev/nbdN`. The kernel keeps
/// the sockets until [`disconnect`]. When all peers are gone, requests fail at once.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::Refused`] (it needs CAP_SYS_ADMIN).
pub fn connect(disk: &Disk, sockets: &[BorrowedFd<'_>]) -> Result<u32, Error> {
    let driver = Driver::find()?;
    let mut message = Message::new(driver.family, CONNECT);
    message.put_u64(SIZE_BYTES, disk.bytes);
    message.put_u64(BLOCK_SIZE_BYTES, u64::from(disk.block_bytes));
    message.put_u64(TIMEOUT, disk.timeout.as_secs());
    message.put_u64(SERVER_FLAGS, u64::from(disk.flags));
    message.put_u64(CLIENT_FLAGS, 0);
    message.put_u64(DEAD_CONNECTION_TIMEOUT, 0);
    message.nest(SOCKETS, |message| {
        for socket in sockets.iter().take(SOCKETS_MAX) {
            message.nest(SOCKET_ITEM, |message| {
                message.put_u32(SOCKET_DESCRIPTOR, socket.as_raw_fd() as u32);
            });
        }
    });
    driver.ask(message, "connect", INDEX)?.ok_or(Error::NoDisk)
}

/// Removes the disk `/dev/nbdN`. The kernel sends a disconnect request on its connections.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::Refused`].
pub fn disconnect(index: u32) -> Result<(), Error> {
    let driver = Driver::find()?;
    let mut message = Message::new(driver.family, DISCONNECT);
    message.put_u32(INDEX, index);
    driver.ask(message, "disconnect", INDEX).map(drop)
}

/// A socket to the driver.
struct Driver {
    socket: OwnedFd,
    family: u16,
}

impl Driver {
    fn find() -> Result<Self, Error> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(GENERIC))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WAIT))?;
        let mut driver = Self { socket, family: CONTROL };
        let mut message = Message::new(CONTROL, GET_FAMILY);
        message.put_text(FAMILY_NAME, "nbd");
        let family = match driver.ask(message, "tell its number", FAMILY_ID) {
            Err(Error::Refused { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NoDriver);
            }
            family => family?.ok_or(Error::NoDriver)?,
        };
        driver.family = family as u16;
        Ok(driver)
    }

    /// Sends a message, and returns the number in the answer's `attribute`, if the answer has it.
    fn ask(
        &self,
        message: Message,
        what: &'static str,
        attribute: u16,
    ) -> Result<Option<u32>, Error> {
        send(&self.socket, &message.finish(), SendFlags::empty())?;
        let mut found = None;
        let mut buffer = [0; ANSWER_BYTES];
        loop {
            let (count, _) = recv(&self.socket, &mut buffer, RecvFlags::empty())?;
            for answer in answers(&buffer[..count.min(ANSWER_BYTES)]) {
                match answer {
                    Answer::Done(0) => return Ok(found),
                    Answer::Done(errno) => {
                        let error = io::Error::from_raw_os_error(errno);
                        return Err(Error::Refused { what, error });
                    }
                    Answer::Attributes(attributes) => {
                        found = message::number(attributes, attribute).or(found);
                    }
                }
            }
        }
    }
}
