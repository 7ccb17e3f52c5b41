//! File leases (fcntl(2), `F_SETLEASE`), which detect whether another process has a file open.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

use crate::sys::{number, syscall6};

const F_SETSIG: usize = 10;
const F_SETLEASE: usize = 1024;
const F_WRLCK: usize = 1;
const F_UNLCK: usize = 2;
/// The signal for a lease break. It is ignored by default; the kernel's default, SIGIO, would end the process.
const SIGURG: usize = 23;

/// A held lease. While it lives, another open of the file blocks, for at most the seconds in
/// `/proc/sys/fs/lease-break-time`.
#[derive(Debug)]
pub struct WriteLease<F: AsFd> {
    file: F,
}

impl<F: AsFd> WriteLease<F> {
    /// Takes a lease on a file without other open descriptors or mappings. Duplicates of `file` count as one. The
    /// caller must own the file, or have CAP_LEASE. The file must have been opened by name: the kernel does not
    /// count a memfd's first descriptor.
    ///
    /// # Errors
    /// `AGAIN` if the file is open elsewhere, also by another open(2) of the caller; `ACCES` if the caller does not own
    /// it;
    /// `INVAL` if the file system has no leases.
    pub fn take(file: F) -> Result<Self, Errno> {
        let descriptor = file.as_fd().as_raw_fd() as usize;
        fcntl(descriptor, F_SETSIG, SIGURG)?;
        fcntl(descriptor, F_SETLEASE, F_WRLCK)?;
        Ok(Self { file })
    }
}

impl<F: AsFd> Drop for WriteLease<F> {
    fn drop(&mut self) {
        let _ = fcntl(self.file.as_fd().as_raw_fd() as usize, F_SETLEASE, F_UNLCK);
    }
}

fn fcntl(descriptor: usize, command: usize, argument: usize) -> Result<usize, Errno> {
    // SAFETY: these commands take numbers and touch no memory.
    unsafe { syscall6(number::FCNTL, [descriptor, command, argument, 0, 0, 0]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open, unlink};

    #[test]
    fn a_lease_is_had_only_while_nobody_else_has_the_file_open() {
        let path = format!("/dev/shm/spillway-lease-{}", std::process::id());
        let opened = |flags| open(path.as_str(), flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let file = opened(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).unwrap();
        for flags in [OFlags::RDWR, OFlags::RDONLY] {
            let other = opened(flags).unwrap();
            assert_eq!(WriteLease::take(&file).unwrap_err(), Errno::AGAIN);
            drop(other);
            drop(WriteLease::take(&file).unwrap());
        }
        let _duplicate = rustix::io::dup(&file).unwrap();
        let lease = WriteLease::take(&file).unwrap();
        let waits = opened(OFlags::RDWR | OFlags::NONBLOCK).unwrap_err();
        assert_eq!(waits, Errno::WOULDBLOCK);
        drop(lease);
        unlink(path.as_str()).unwrap();
    }
}
