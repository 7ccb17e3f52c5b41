//! Receives a handover from a monitor's socket, with a deadline and limits.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::{Claimed, Error, Handshake};

/// Most descriptors of a handover: the kernel's limit for one message.
pub const DESCRIPTORS_MAX: usize = 253;
/// Buffer size for the longest list of regions.
const BYTES_MAX: usize = 512 << 10;
const PART_BYTES: usize = 64 << 10;

/// A parsed handover. Nothing in it is checked yet.
#[derive(Debug)]
pub struct Received {
    /// The regions that it names.
    pub regions: Vec<Claimed>,
    /// The descriptors that came, in their order.
    pub descriptors: Vec<OwnedFd>,
}

/// Receives a handover. Closes the descriptors of one that fails.
///
/// # Errors
/// Says what is wrong with it, or that it did not arrive within `within`.
pub fn receive(
    socket: impl AsFd,
    handshake: Handshake,
    within: Duration,
) -> Result<Received, Error> {
    let end = Instant::now() + within;
    let mut bytes = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        wait(socket.as_fd(), end, within)?;
        let came = take_part(socket.as_fd(), &mut bytes, &mut descriptors)?;
        let files = descriptors.len().saturating_sub(1);
        if let Some(regions) = handshake.decode(&bytes, files)? {
            return Ok(Received { regions, descriptors });
        }
        if came == Some(0) {
            return Err(Error::Closed);
        }
        if bytes.len() > BYTES_MAX {
            return Err(Error::Long(BYTES_MAX));
        }
    }
}

fn wait(socket: BorrowedFd<'_>, end: Instant, within: Duration) -> Result<(), Error> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Late(within.as_secs()));
        }
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut polled = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Error::system("wait for the monitor")(errno)),
        }
    }
}

/// Receives the available bytes; none for a spurious wake-up.
fn take_part(
    socket: BorrowedFd<'_>,
    bytes: &mut Vec<u8>,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, Error> {
    let mut part = vec![0; PART_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut part)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match recvmsg(socket, parts, &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(Errno::CONNRESET) => return Err(Error::Closed),
        Err(errno) => return Err(Error::system("receive from the monitor")(errno)),
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            descriptors.extend(files);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Error::ManyDescriptors(DESCRIPTORS_MAX));
    }
    bytes.extend_from_slice(&part[..received.bytes]);
    Ok(Some(received.bytes))
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);
    const TEXT: &[u8] = br#"[{"base_host_virt_addr":4096,"size":4096,"offset":0}]"#;

    fn send(socket: &UnixStream, text: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::empty()).unwrap();
    }

    fn open_here() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn a_message_in_parts_comes_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&theirs, &TEXT[..7], &[theirs.as_fd()]);
                send(&theirs, &TEXT[7..20], &[]);
                send(&theirs, &TEXT[20..], &[theirs.as_fd(), theirs.as_fd()]);
            });
            let received = receive(&ours, Handshake::Firecracker, LONG).unwrap();
            assert_eq!((received.regions.len(), received.descriptors.len()), (1, 3));
        });
    }

    #[test]
    fn who_is_slow_goes_away_or_talks_too_much_is_dropped() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let error = |socket: &UnixStream, within| {
            receive(socket, Handshake::Firecracker, within).unwrap_err()
        };
        assert_eq!(error(&ours, SOON), Error::Late(0));
        send(&theirs, &TEXT[..20], &[]);
        assert_eq!(error(&ours, SOON), Error::Late(0), "half a message");
        theirs.shutdown(Shutdown::Both).unwrap();
        assert_eq!(error(&ours, LONG), Error::Closed);

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = theirs.write_all(&vec![b' '; BYTES_MAX + PART_BYTES + 1]);
            });
            assert_eq!(error(&ours, LONG), Error::Long(BYTES_MAX));
            ours.shutdown(Shutdown::Both).unwrap();
        });
    }

    #[test]
    fn descriptors_of_a_refused_message_are_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let before = open_here();
        let held = [theirs.as_fd(); 8];
        send(&theirs, b"nonsense", &held);
        assert!(matches!(receive(&ours, Handshake::Firecracker, LONG), Err(Error::Message { .. })));
        // Other tests open and close files meanwhile, but not eight more.
        assert!(open_here() < before + 8);
    }
}
