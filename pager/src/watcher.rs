//! The watcher: a process that shares the program's memory, as the pager does, and lives beside a pager
//! whose supervisor has ended, or may not copy the pager's userfaultfds. When the last descriptor of a
//! userfaultfd closes, the kernel serves zeros where pages are far. The watcher holds copies, so a program
//! whose pager died waits at its next fault, and is killed there: by the supervisor while there is one,
//! else by the watcher.

use crate::pager::Pager;
use crate::start::pager_at;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::futex;
use spillway_platform::process::{Program, own_number};
use spillway_platform::sys;
use spillway_platform::task::spawn_guest_process;
use std::io::Write;
use std::sync::atomic::Ordering;

/// How long a new watcher may take to be there.
const START: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Bytes of a line.
const LINE_BYTES: usize = 160;
/// What is said of a process whose pager ended.
pub const PAGER_ENDED: &str = "its pager ended, so it was killed before it could read wrong bytes";
/// How long a supervisor may take to kill a program whose pager ended.
const SUPERVISED: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long a pager may take to end after its program.
const LEAVE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The pager's side: the watcher that it has.
#[derive(Default)]
pub(crate) struct Watch(Option<Program>);

impl Watch {
    /// Makes a watcher if there is none, or none any more.
    pub(crate) fn keep(&mut self, pager: &'static Pager) {
        if self.0.as_ref().is_some_and(|watcher| !watcher.has_ended()) {
            return;
        }
        pager.processes.watcher.store(0, Ordering::Release);
        let argument = std::ptr::from_ref(pager) as usize;
        if spawn_guest_process(watcher_main, argument).is_ok() {
            let _ = futex::wait(&pager.processes.watcher, futex::Flags::PRIVATE, 0, Some(&START));
            self.0 = Program::open(pager.processes.watcher.load(Ordering::Acquire)).ok();
        }
    }
}

extern "C" fn watcher_main(pager: usize) {
    pager_at(pager).run_watcher()
}

impl Pager {
    /// The life of the watcher.
    fn run_watcher(&'static self) -> ! {
        self.leave_for(c"spillway-watch");
        let open = |number: u32| Program::open(number);
        let (Ok(program), Ok(pager)) = (
            open(self.processes.program.load(Ordering::Relaxed)),
            open(self.processes.pager.load(Ordering::Acquire)),
        ) else {
            sys::exit_process(1)
        };
        self.slot.watcher_pid.store(own_number(), Ordering::Release);
        let own = rustix::process::getpid().as_raw_pid() as u32;
        self.processes.watcher.store(own, Ordering::Release);
        let _ = futex::wake(&self.processes.watcher, futex::Flags::PRIVATE, i32::MAX as u32);
        let _ = poll(&mut [end_of(&program), end_of(&pager)], None);
        if !pager.has_ended() {
            // The program ended, and its pager counts up.
            let _ = poll(&mut [end_of(&pager)], Some(&LEAVE));
            pager.kill();
            sys::exit_process(0)
        }
        if !self.is_unsupervised() {
            // The supervisor also says why.
            let _ = poll(&mut [end_of(&program)], Some(&SUPERVISED));
        }
        if !program.has_ended() && program.shares_memory() {
            // Its faults wait, for the descriptors are open here.
            let number = self.slot.pid.load(Ordering::Relaxed);
            let mut line = [0u8; LINE_BYTES];
            let mut rest = &mut line[..];
            let _ = writeln!(rest, "spillway: process {number}: {PAGER_ENDED}");
            let left = rest.len();
            program.say(&line[..LINE_BYTES - left]);
            program.kill();
        }
        sys::exit_process(0)
    }
}

fn end_of(process: &Program) -> PollFd<'_> {
    PollFd::from_borrowed_fd(process.ended(), PollFlags::IN)
}
