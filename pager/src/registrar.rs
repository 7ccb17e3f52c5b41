//! Requests from the program's threads to the registrar.
//!
//! The userfaultfd is in the pager's descriptor table, which the program can't use. So a thread
//! that maps memory requests its registration here, and sleeps until it is done.

use crate::pager::Pager;
use crate::registrar_slot::{ASKED, DONE, Task};
use rustix::io::Errno;
use rustix::thread::futex;
use spillway_platform::uffd::mode;
use std::sync::atomic::Ordering;

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
