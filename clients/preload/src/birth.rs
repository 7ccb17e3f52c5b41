//! Whether a forked child got a pager: the child says so, and the parent waits for it inside the fork. Without
//! room for another task `fork` then fails as it does without Spillway, and the program tries again or goes on.

use libc::c_int;
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::futex;
use spillway_pager::Error;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::map_native_shared;
use spillway_platform::sys::{number, syscall6};
use std::sync::atomic::{AtomicU32, Ordering};

/// The child has said nothing yet. Other values are errors of the kernel.
const OPEN: u32 = 0;
/// The child runs.
const RUNS: u32 = u32::MAX;
/// The parent waits no more.
const LEFT: u32 = u32::MAX - 1;
/// How long the parent sleeps before it looks whether the child was killed, and how often. Somebody else may hold
/// the child for ever, such as a debugger.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
const TICKS: usize = 100;
/// `__WALL`: also children that raise no SIGCHLD.
const ALL: u32 = 0x4000_0000;

/// A word that parent and child share.
#[derive(Clone, Copy)]
pub struct Birth(usize);

impl Birth {
    /// Before the fork.
    pub fn new() -> Result<Self, Errno> {
        map_native_shared(PAGE_SIZE).map(Self)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a page of zeros that stays mapped until `end`.
        unsafe { &*(self.0 as *const AtomicU32) }
    }

    fn say(self, word: u32) -> bool {
        let said = self.word().compare_exchange(OPEN, word, Ordering::AcqRel, Ordering::Acquire);
        let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
        said.is_ok()
    }

    /// In the child: it has its pager.
    pub fn succeed(self) {
        self.say(RUNS);
    }

    /// In the child: why it has no pager, if that is a reason for which fork(2) fails. Whether the parent will hear it.
    pub fn fail(self, error: Error) -> bool {
        let errno = error.errno();
        matches!(error, Error::Resources(Errno::AGAIN | Errno::NOMEM))
            && self.say(errno.raw_os_error().cast_unsigned())
    }

    /// In the parent: waits for the child's word, and for the end of a child that has no pager.
    pub fn wait(self, child: usize) -> Result<(), Errno> {
        for _ in 0..TICKS {
            if self.word().load(Ordering::Acquire) != OPEN || has_ended(child) {
                break;
            }
            let _ = futex::wait(self.word(), futex::Flags::empty(), OPEN, Some(&TICK));
        }
        if self.say(LEFT) {
            return Ok(());
        }
        match self.word().load(Ordering::Acquire) {
            RUNS => Ok(()),
            errno => {
                reap(child);
                Err(Errno::from_raw_os_error(errno.cast_signed()))
            }
        }
    }

    /// In both: the word is not used any more.
    pub fn end(self) {
        // SAFETY: the page that `new` mapped; it is used by nobody else in this process.
        let _ = unsafe { rustix::mm::munmap(self.0 as *mut _, PAGE_SIZE) };
    }
}

/// Whether there is no child of this number that still runs. One that has ended stays for the program to wait for.
fn has_ended(child: usize) -> bool {
    let Some(pid) = Pid::from_raw(child as c_int) else { return true };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let options = options | WaitIdOptions::from_bits_retain(ALL);
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}

/// Waits for the end of a child, which the program never hears of.
fn reap(child: usize) {
    let args = [child, 0, ALL as usize, 0, 0, 0];
    // SAFETY: the kernel writes nothing.
    while unsafe { syscall6(number::WAIT4, args) } == Err(Errno::INTR) {}
}
