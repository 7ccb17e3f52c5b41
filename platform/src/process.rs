//! What a guest process wants to know of the program it serves.

use crate::sys::{number, syscall6};
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

    /// Whether it still runs in the address space of the caller; false once it has called exec.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        const KCMP_VM: usize = 1;
        let own = rustix::process::getpid().as_raw_pid() as usize;
        let args = [own, self.pid.as_raw_pid() as usize, KCMP_VM, 0, 0, 0];
        // SAFETY: kcmp takes no pointers for this kind of comparison.
        match unsafe { syscall6(number::KCMP, args) } {
            Ok(order) => order == 0,
            Err(Errno::SRCH) => false,
            Err(_) => true,
        }
    }

    /// Kills it: the last resort when going on would serve wrong bytes.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }
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
