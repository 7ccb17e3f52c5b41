//! Requests of the program's own threads to the pager's tasks.
//!
//! The userfaultfd is in the pager's descriptor table, out of the program's reach, so a thread that
//! maps memory asks here for its registration and sleeps until it is done.

use crate::pager::Pager;
use rustix::io::Errno;
use rustix::thread::futex;
use spillway_platform::uffd::mode;
use spillway_tiers::sync::Lock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What the registrar does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Task {
    /// Register a range.
    Register = 0,
    /// Take a range out again.
    Unregister = 1,
    /// Forget what is not mapped any more of a range.
    Recheck = 3,
    /// In a forked child: open the disk tier's files again.
    Reopen = 2,
}

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;

/// Room for one request at a time.
pub(crate) struct Mailbox {
    turn: Lock<()>,
    state: AtomicU32,
    task: AtomicU32,
    start: AtomicUsize,
    bytes: AtomicUsize,
    errno: AtomicU32,
}

impl Mailbox {
    pub(crate) const fn new() -> Self {
        Self {
            turn: Lock::new(()),
            state: AtomicU32::new(IDLE),
            task: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            errno: AtomicU32::new(0),
        }
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(&self, task: Task, start: usize, bytes: usize) -> Result<(), Errno> {
        let _turn = self.turn.lock();
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
    /// The life of the registrar.
    pub(crate) fn run_registrar(&self) -> ! {
        let mailbox = &self.mailbox;
        loop {
            let state = mailbox.state.load(Ordering::Acquire);
            if state != ASKED {
                let _ = futex::wait(&mailbox.state, futex::Flags::PRIVATE, state, None);
                continue;
            }
            let start = mailbox.start.load(Ordering::Relaxed);
            let bytes = mailbox.bytes.load(Ordering::Relaxed);
            let answer = match mailbox.task.load(Ordering::Relaxed) {
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
            mailbox.errno.store(errno, Ordering::Relaxed);
            mailbox.move_to(DONE);
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
