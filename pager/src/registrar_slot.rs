//! The slot for requests to the registrar, which takes one at a time.

use rustix::io::Errno;
use rustix::thread::futex;
use spillway_platform::lock::Lock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The requests to the registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Task {
    /// Register a range.
    Register = 0,
    /// Unregister a range.
    Unregister = 1,
    /// Forget the pages of a range that are not mapped any more.
    Recheck = 3,
    /// In a forked child: open the disk tier's files again.
    Reopen = 2,
}

const IDLE: u32 = 0;
pub(crate) const ASKED: u32 = 1;
pub(crate) const DONE: u32 = 2;

/// A request slot: it takes one request at a time.
pub(crate) struct RegistrarSlot {
    caller: Lock<()>,
    pub(crate) state: AtomicU32,
    pub(crate) task: AtomicU32,
    pub(crate) start: AtomicUsize,
    pub(crate) bytes: AtomicUsize,
    pub(crate) errno: AtomicU32,
}

impl RegistrarSlot {
    pub(crate) const fn new() -> Self {
        Self {
            caller: Lock::new(()),
            state: AtomicU32::new(IDLE),
            task: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            errno: AtomicU32::new(0),
        }
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(&self, task: Task, start: usize, bytes: usize) -> Result<(), Errno> {
        let _caller = self.caller.lock();
        self.task.store(task as u32, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.move_to(ASKED);
        while self.state.load(Ordering::Acquire) != DONE {
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, ASKED, None);
        }
        self.state.store(IDLE, Ordering::Release);
        match self.errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno as i32)),
        }
    }

    /// Changes the state, and wakes who waits for that.
    pub(crate) fn move_to(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}
