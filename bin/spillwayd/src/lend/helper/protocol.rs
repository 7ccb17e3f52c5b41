//! The protocol between daemon and helper: a JSON datagram each way.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest datagram in bytes.
const BYTES_MAX: usize = 16 << 10;
/// Most descriptors of a datagram: those of a disk, and the socket for the answer.
pub const FDS_MAX: usize = 17;
/// Time limit of requests that only change a setting or create a disk.
const SHORT: Duration = Duration::from_secs(60);

/// Requests. Their paths come from earlier replies. The last descriptor of each is the socket for its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Locks the helper's memory.
    Lock,
    /// Creates a kernel NBD disk from the sockets that come with the request; returns its number.
    Attach {
        /// Its length.
        bytes: u64,
        /// Of a block.
        block_bytes: u32,
        /// Of NBD's transmission flags.
        flags: u16,
        /// Seconds without a reply after which the kernel fails a request.
        timeout_s: u64,
    },
    /// Removes a disk from the kernel.
    Detach {
        /// Its number.
        index: u32,
    },
    /// Makes a device swap space with the highest priority.
    SwapOn {
        /// Which.
        path: String,
        /// How long that may take, seconds.
        timeout_s: u64,
    },
    /// Stops swapping to a device, and brings its pages back.
    SwapOff {
        /// Which.
        path: String,
        /// How long that may take, seconds.
        timeout_s: u64,
    },
    /// Connects to a lender's device; its path.
    Connect(Connect),
    /// Disconnects from a lender, unless other devices of it are in use.
    Disconnect {
        /// The device.
        path: String,
    },
    /// Makes the kernel keep this much memory free, and returns the former value; 0 restores it.
    MinFree {
        /// Bytes.
        bytes: u64,
        /// Whether the value may be changed. Otherwise it must already be high enough.
        may_change: bool,
    },
}

impl Verb {
    /// How long it may take.
    pub const fn limit(&self) -> Duration {
        match self {
            Self::SwapOn { timeout_s, .. } | Self::SwapOff { timeout_s, .. } => {
                Duration::from_secs(*timeout_s)
            }
            _ => SHORT,
        }
    }

    /// What operators know it as.
    pub fn name(&self) -> String {
        match self {
            Self::Lock => "mlockall".to_owned(),
            Self::Attach { .. } => "nbd connect".to_owned(),
            Self::Detach { .. } => "nbd disconnect".to_owned(),
            Self::SwapOn { path, .. } => format!("swapon {path}"),
            Self::SwapOff { path, .. } => format!("swapoff {path}"),
            Self::Connect(connect) => format!("nvme connect to {}", connect.address),
            Self::Disconnect { path } => format!("nvme disconnect of {path}"),
            Self::MinFree { .. } => "vm.min_free_kbytes".to_owned(),
        }
    }
}

/// A lender's device in direct mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connect {
    /// The address of the lender's target.
    pub address: SocketAddr,
    /// Its subsystem.
    pub nqn: String,
    /// The device's UUID.
    pub uuid: u128,
    /// Seconds without a reply after which the device counts as lost.
    pub loss_s: u64,
    /// The secret by which this host authenticates.
    pub secret: Option<String>,
}

/// The result: a path or nothing, or one line with the error.
pub type Answer = Result<String, String>;

/// Two connected sockets.
///
/// # Errors
/// No descriptors are left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Waits until there is a datagram, or the other end is closed. Returns whether that came in time.
///
/// # Errors
/// The kernel refused.
pub fn wait(socket: impl AsFd, limit: Duration) -> io::Result<bool> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count != 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a datagram, without waiting for room.
///
/// # Errors
/// The other end is closed or has no room, or the datagram is too long.
pub fn send(socket: impl AsFd, value: &impl Serialize, fds: &[OwnedFd]) -> io::Result<()> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::other)?;
    if bytes.len() > BYTES_MAX || fds.len() > FDS_MAX {
        return Err(io::Error::other("too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    sendmsg(
        socket,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

/// Waits for a datagram, with the descriptors that come with it.
///
/// # Errors
/// The other end is closed, or the datagram is malformed.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut bytes = vec![0; BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let length = loop {
        match recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => break message.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&bytes[..length]).map_err(io::Error::other)?, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_travel_with_descriptors_until_the_other_end_is_gone() {
        let (a, b) = pair().unwrap();
        let (passed, _) = pair().unwrap();
        send(&a, &Verb::SwapOff { path: "a".into(), timeout_s: 7 }, &[passed]).unwrap();
        let (verb, fds): (Verb, _) = receive(&b).unwrap();
        assert!(matches!(verb, Verb::SwapOff { timeout_s: 7, .. }) && fds.len() == 1);
        let answer: Answer = Err("no".into());
        send(&b, &answer, &[]).unwrap();
        assert_eq!(receive::<Answer>(&a).unwrap().0, answer);
        drop(a);
        assert!(receive::<Verb>(&b).is_err());
    }
}
