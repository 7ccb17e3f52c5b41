//! What a guest process wants to know of the program it serves.

use crate::dispatch::{Disposition, set_disposition};
use crate::sys::{number, syscall6};
use crate::task::set_signal_mask;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A program, named so that its number can't be reused under our feet.
#[derive(Debug)]
pub struct Program {
    pid: Pid,
    descriptor: OwnedFd,
}

impl Program {
    /// Takes hold of the process with this number.
    ///
    /// # Errors
    /// When it has ended or no descriptor is free.
    pub fn open(pid: u32) -> Result<Self, Errno> {
        let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
        Ok(Self { pid, descriptor: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Readable when the program has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether any thread of it still runs in the address space of the caller; false once it has
    /// called exec. A main thread that has ended alone does not count.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        let pid = self.pid.as_raw_pid() as usize;
        thread_shares_memory(pid)
            || self.threads().is_none_or(|mut ids| ids.any(thread_shares_memory))
    }

    /// The numbers of its threads; None when they can't be listed.
    fn threads(&self) -> Option<impl Iterator<Item = usize>> {
        let mut path = [0u8; 32];
        let mut end = &mut path[..31];
        std::io::Write::write_fmt(&mut end, format_args!("/proc/{}/task", self.pid.as_raw_pid()))
            .ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let folder = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
        let entries = rustix::fs::Dir::new(folder).ok()?;
        Some(entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()))
    }

    /// Kills it: the last resort when going on would serve wrong bytes.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }
}

/// The number of the calling process where /proc is mounted, which is the supervisor's namespace even for
/// a process in a process namespace of its own. Where there is no /proc, its own.
pub fn own_number() -> u32 {
    number_behind(c"/proc/self").unwrap_or(rustix::process::getpid().as_raw_pid() as u32)
}

/// The number of the calling thread, as [`own_number`].
pub fn own_thread_number() -> u32 {
    let own = || rustix::thread::gettid().as_raw_pid() as u32;
    number_behind(c"/proc/thread-self").unwrap_or_else(own)
}

/// The last number of the path that a link of procfs holds.
fn number_behind(link: &core::ffi::CStr) -> Option<u32> {
    let mut path = [0u8; 64];
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, link, &mut path).ok()?;
    let last = path[..length].rsplit(|&byte| byte == b'/').next()?;
    core::str::from_utf8(last).ok()?.parse().ok()
}

/// Ends this process by a signal whose default action does that.
pub fn die_by(signal: Signal) -> ! {
    // SAFETY: the default action runs no code of this process.
    let _ = unsafe { set_disposition(signal.as_raw(), &Disposition::DEFAULT) };
    set_signal_mask(0);
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    crate::sys::exit_process(128 + signal.as_raw())
}

/// The cores that the caller may run on, into `cores`; returns how many.
pub fn usable_cores(cores: &mut [usize]) -> usize {
    let Ok(set) = sched_getaffinity(None) else { return 0 };
    let usable = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
    let mut count = 0;
    for (place, core) in cores.iter_mut().zip(usable) {
        *place = core;
        count += 1;
    }
    count
}

/// Keeps the calling thread on one core.
pub fn pin_to_core(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

/// Whether a thread, by its number, runs in the caller's address space; true when the kernel won't
/// say.
fn thread_shares_memory(thread: usize) -> bool {
    let own = rustix::process::getpid().as_raw_pid() as usize;
    compares_equal(own, thread).unwrap_or(true)
}

/// Whether any process but the caller runs in the caller's address space; they are killed if
/// `kill` says so.
pub fn others_share_memory(kill: bool) -> bool {
    let own = rustix::process::getpid().as_raw_pid() as usize;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let folder = rustix::fs::open(c"/proc", flags, rustix::fs::Mode::empty());
    let Ok(entries) = folder.and_then(rustix::fs::Dir::new) else { return false };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok());
    let mut found = false;
    for process in numbers.filter(|&process: &usize| process != own) {
        if compares_equal(own, process) == Some(true) {
            found = true;
            if let Some(pid) = Pid::from_raw(process as i32).filter(|_| kill) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
    found
}

/// Whether two tasks have the same address space; None when the kernel won't say.
fn compares_equal(one: usize, other: usize) -> Option<bool> {
    const KCMP_VM: usize = 1;
    // SAFETY: kcmp takes no pointers for this kind of comparison.
    match unsafe { syscall6(number::KCMP, [one, other, KCMP_VM, 0, 0, 0]) } {
        Ok(order) => Some(order == 0),
        Err(Errno::SRCH) => Some(false),
        Err(_) => None,
    }
}
