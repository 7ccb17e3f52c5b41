//! Requests from the program's threads to the registrar.
//!
//! The userfaultfd is in the pager's descriptor table, which the program can't use. So a thread
//! that maps memory requests its registration here, and sleeps until it is done.

use crate::pager::Pager;
use rustix::io::Errno;
use rustix::thread::futex;
use spillway_platform::uffd::mode;
use spillway_tiers::sync::Lock;
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
const ASKED: u32 = 1;
const DONE: u32 = 2;

/// A request slot: it takes one request at a time.
pub(crate) struct RegistrarSlot {
    caller: Lock<()>,
    state: AtomicU32,
    task: AtomicU32,
    start: AtomicUsize,
    bytes: AtomicUsize,
    errno: AtomicU32,
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

    fn move_to(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

impl Pager {
    /// Runs the registrar.
    pub(crate) fn run_registrar(&self) -> ! {
        let slot = &self.registrar_slot;
        loop {
            let state = slot.state.load(Ordering::Acquire);
            if state != ASKED {
                let _ = futex::wait(&slot.state, futex::Flags::PRIVATE, state, None);
                continue;
            }
            let start = slot.start.load(Ordering::Relaxed);
            let bytes = slot.bytes.load(Ordering::Relaxed);
            let answer = match slot.task.load(Ordering::Relaxed) {
                t if t == Task::Register as u32 => {
                    self.main().register(start, bytes, mode::MISSING | mode::WP)
                }
                t if t == Task::Unregister as u32 => self.main().unregister(start, bytes),
                t if t == Task::Recheck as u32 => {
                    self.forget_unmapped(start, start + bytes);
                    Ok(())
                }
                _ => self.reopen_files(start),
            };
            let errno = answer.err().map_or(0, |e| e.raw_os_error() as u32);
            slot.errno.store(errno, Ordering::Relaxed);
            slot.move_to(DONE);
        }
    }

    /// Opens the disk tier's files, which the parent's pager (task `parent`) has open.
    fn reopen_files(&self, parent: usize) -> Result<(), Errno> {
        let open = |descriptor: u64| {
            let path = format!("/proc/{parent}/fd/{descriptor}");
            let flags = rustix::fs::OFlags::RDONLY
                | rustix::fs::OFlags::CLOEXEC
                | rustix::fs::OFlags::DIRECT;
            Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)
        };
        self.store.reopen_files(open).map_err(|_| Errno::IO)
    }
}
