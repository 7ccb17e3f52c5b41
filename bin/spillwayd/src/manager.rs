//! Notifies the service manager, or the fd store, as sd_notify(3) describes.

use std::env;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};
use rustix::time::{ClockId, clock_gettime};

/// Sends lines, with at most one descriptor. Does nothing if there is no service manager.
///
/// # Errors
/// The socket does not exist, or is full.
pub fn tell(lines: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd {
        ancillary.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    let text = [IoSlice::new(lines.as_bytes())];
    sendmsg_addr(&socket, &address, &text, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Reports the daemon's status. A failure is only logged.
pub fn state(lines: &str) {
    if let Err(error) = tell(lines, None) {
        tracing::warn!("can't notify the service manager: {error}");
    }
}

/// Reports the start of a reload, with the timestamp that systemd requires.
pub fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    state(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
}
