//! System calls that rustix has no wrapper for.

use core::arch::asm;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

/// Makes a raw system call with up to six arguments, and returns the kernel's answer.
///
/// # Errors
/// The errno of a negative answer.
///
/// # Safety
/// The call must be sound with these arguments: pointers valid for what the kernel does with them,
/// and nothing unmapped or closed that safe code still relies on.
pub unsafe fn syscall6(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let answer: isize;
    // SAFETY: the x86-64 system call convention; the kernel clobbers rcx and r11 only.
    unsafe {
        asm!("syscall",
            inlateout("rax") number => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&answer) {
        Err(Errno::from_raw_os_error(-answer as i32))
    } else {
        Ok(answer as usize)
    }
}

/// Numbers of the system calls made here (x86-64).
pub mod number {
    /// `getsockopt(2)`
    pub const GETSOCKOPT: usize = 55;
    /// `madvise(2)`
    pub const MADVISE: usize = 28;
    /// `fcntl(2)`
    pub const FCNTL: usize = 72;
    /// `mincore(2)`
    pub const MINCORE: usize = 27;
    /// `execve(2)`
    pub const EXECVE: usize = 59;
    /// `exit(2)`: ends a thread.
    pub const EXIT: usize = 60;
    /// `exit_group(2)`: ends a process.
    pub const EXIT_GROUP: usize = 231;
    /// `kcmp(2)`
    pub const KCMP: usize = 312;
    /// `close_range(2)`
    pub const CLOSE_RANGE: usize = 436;
    /// `rt_sigaction(2)`
    pub const SIGACTION: usize = 13;
    /// `prctl(2)`
    pub const PRCTL: usize = 157;
    /// `rt_sigprocmask(2)`
    pub const SIGPROCMASK: usize = 14;
    /// `wait4(2)`
    pub const WAIT4: usize = 61;
    /// `sched_setscheduler(2)`
    pub const SCHED_SETSCHEDULER: usize = 144;
    /// `swapon(2)`
    pub const SWAPON: usize = 167;
}

/// The credentials of a Unix socket's peer: `struct ucred` of unix(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerCredentials {
    /// Process; 0 if it is outside this process's pid namespace. (rustix can't represent 0.)
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The credentials of the peer of a Unix socket, as they were when it connected.
///
/// # Errors
/// Those of getsockopt(2) for `SO_PEERCRED`.
pub fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials, Errno> {
    const SOL_SOCKET: usize = 1;
    const SO_PEERCRED: usize = 17;
    let mut peer = PeerCredentials::default();
    let mut length = size_of::<PeerCredentials>() as u32;
    let socket = socket.as_fd().as_raw_fd() as usize;
    let args =
        [socket, SOL_SOCKET, SO_PEERCRED, &raw mut peer as usize, &raw mut length as usize, 0];
    // SAFETY: the kernel writes at most `length` bytes to `peer`, for which any bytes are a value.
    unsafe { syscall6(number::GETSOCKOPT, args)? };
    Ok(peer)
}

/// Ends this process with a status.
pub fn exit_process(status: i32) -> ! {
    // SAFETY: exit_group takes no pointers and does not return.
    let _ = unsafe { syscall6(number::EXIT_GROUP, [status as usize, 0, 0, 0, 0, 0]) };
    unreachable!("exit_group returned")
}

/// Ends the calling thread alone.
pub fn exit_thread() -> ! {
    // SAFETY: exit takes no pointers and does not return.
    let _ = unsafe { syscall6(number::EXIT, [0; 6]) };
    unreachable!("exit returned")
}
