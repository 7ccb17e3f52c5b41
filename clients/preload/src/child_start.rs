//! The start of a forked child's pager, which the parent awaits inside `fork`. If there is no room for another task,
//! `fork` fails as it does without Spillway, and the program tries again or continues.

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

/// Values of the shared word. All others are errors of the kernel, from a child without a pager.
const PENDING: u32 = 0;
/// The child has its pager.
const STARTED: u32 = u32::MAX;
/// The parent no longer waits.
const ABANDONED: u32 = u32::MAX - 1;
/// How long the parent sleeps before it checks whether the child was killed.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The most checks: ten seconds in all, enough for a busy machine. A debugger can hold the child as long as it likes.
const CHECKS_MAX: usize = 1000;
/// `__WALL`: also children that raise no SIGCHLD.
const WALL: u32 = 0x4000_0000;

/// A word that parent and child share, in a page of its own.
#[derive(Clone, Copy)]
pub struct ChildStart(usize);

impl ChildStart {
    /// Maps the page. Call it before the fork.
    pub fn new() -> Result<Self, Errno> {
        map_native_shared(PAGE_SIZE).map(Self)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a page of zeros that stays mapped until `unmap`.
        unsafe { &*(self.0 as *const AtomicU32) }
    }

    /// Sets the word and wakes the parent. Returns whether the word was still pending.
    fn settle(self, word: u32) -> bool {
        let set = self.word().compare_exchange(PENDING, word, Ordering::AcqRel, Ordering::Acquire);
        let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
        set.is_ok()
    }

    /// In the child: it has its pager.
    pub fn succeed(self) {
        self.settle(STARTED);
    }

    /// In the child: it has no pager because of `error`. Returns whether the parent reports it: only errors with which
    /// fork(2) can fail, and only while the parent waits.
    pub fn fail(self, error: Error) -> bool {
        let errno = error.errno();
        matches!(error, Error::Resources(Errno::AGAIN | Errno::NOMEM))
            && self.settle(errno.raw_os_error().cast_unsigned())
    }

    /// In the parent: waits until the child has its pager, for at most ten seconds. Waits for the end of a child that
    /// has none.
    ///
    /// # Errors
    /// Why the child has no pager.
    pub fn wait(self, child: usize) -> Result<(), Errno> {
        for _ in 0..CHECKS_MAX {
            if self.word().load(Ordering::Acquire) != PENDING || has_ended(child) {
                break;
            }
            let flags = futex::Flags::empty();
            let _ = futex::wait(self.word(), flags, PENDING, Some(&CHECK_INTERVAL));
        }
        if self.settle(ABANDONED) {
            return Ok(());
        }
        match self.word().load(Ordering::Acquire) {
            STARTED => Ok(()),
            errno => {
                reap(child);
                Err(Errno::from_raw_os_error(errno.cast_signed()))
            }
        }
    }

    /// In both processes, once the word is no longer used.
    pub fn unmap(self) {
        // SAFETY: the page that `new` mapped; it is used by nobody else in this process.
        let _ = unsafe { rustix::mm::munmap(self.0 as *mut _, PAGE_SIZE) };
    }
}

/// Whether no child with this process number runs. A child that has ended stays a zombie, for the program's own wait.
fn has_ended(child: usize) -> bool {
    let Some(pid) = Pid::from_raw(child as c_int) else { return true };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let options = options | WaitIdOptions::from_bits_retain(WALL);
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}

/// Waits for the end of a child that the program never learns of.
fn reap(child: usize) {
    let args = [child, 0, WALL as usize, 0, 0, 0];
    // SAFETY: the kernel writes nothing.
    while unsafe { syscall6(number::WAIT4, args) } == Err(Errno::INTR) {}
}
