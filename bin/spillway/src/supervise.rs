//! Supervises the program while it runs: forwards signals, reaps orphans, watches the pagers, and
//! ends with the program's exit status.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, SigHandler, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, kill_process,
    set_child_subreaper, set_dumpable_behavior, set_parent_process_death_signal, setrlimit, wait,
};
use spillway_pager::PAGER_ENDED;
use spillway_pager::tree::Tree;

use crate::sample::parent_of;
use crate::slots::{Pagers, any_unsettled, any_unwatched, end_stragglers};

/// How often the supervisor checks without being woken. A new pager's userfaultfd has no second
/// descriptor for at most this long. Within that time hardly a page has left the program.
const TICK: Duration = Duration::from_millis(20);
/// The same while it waits for pagers to add up their counters and end.
const SETTLE_TICK: Duration = Duration::from_millis(2);
/// How long it waits for them at most.
const SETTLE: Duration = Duration::from_secs(2);
/// How long a program may take to end after SIGTERM or SIGINT before the user gets a message.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the supervisor waits for the remaining processes to get their own watchers.
const HAND_OVER: Duration = Duration::from_secs(1);
/// Linux's __WALL: also children that were made by clone without SIGCHLD, as pagers are.
const WAIT_ALL: WaitOptions = WaitOptions::from_bits_retain(0x4000_0000);
/// The C library's own signals.
const INTERNAL: [i32; 2] = [32, 33];
/// How many ancestors are checked to find a process's run.
const ANCESTORS_MAX: usize = 4096;
/// siginfo's code of a signal that a terminal sent to the whole process group.
const SENT_BY_KERNEL: i32 = 0x80;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By exit, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Ending {
    fn of(status: WaitStatus) -> Option<Self> {
        status
            .exit_status()
            .map(Self::Code)
            .or_else(|| status.terminating_signal().map(Self::Signal))
    }

    /// Exit code and signal; one of them is there.
    pub fn parts(self) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Code(code) => (Some(code), None),
            Self::Signal(signal) => (None, Some(signal)),
        }
    }

    /// Ends this process in the same way: by the same signal, without a core dump of our own.
    pub fn follow(self) -> ExitCode {
        let number = match self {
            Self::Code(code) => return ExitCode::from(code.to_le_bytes()[0]),
            Self::Signal(number) => number,
        };
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        if let Ok(signal) = signal::Signal::try_from(number) {
            // SAFETY: the default action runs no code of ours.
            let _ = unsafe { signal::signal(signal, SigHandler::SigDfl) };
            let _ = SigSet::all().thread_unblock();
            let _ = signal::raise(signal);
        }
        // Real-time signals have no name here; a shell reports a signal as 128 + its number.
        ExitCode::from(number.to_le_bytes()[0].wrapping_add(128))
    }
}

/// The caller's hooks: called at each check, and for each line for the user.
pub trait Observer {
    /// Called at least every [`TICK`] while the program runs.
    fn look(&mut self);
    /// A line to print.
    fn say(&mut self, line: &str);
    /// This object on the blade has no holder any more.
    fn unheld(&mut self, object: u64);
}

/// The supervisor of one program.
pub struct Supervisor {
    signals: SignalFd,
    main: Pid,
    pagers: Pagers,
    asked: Option<Asked>,
}

/// The supervisor was asked to end.
#[derive(Clone, Copy)]
struct Asked {
    by: Signal,
    at: Instant,
    told: bool,
}

impl Supervisor {
    /// Starts `command` in this process group. Signals are blocked before it starts.
    ///
    /// # Errors
    /// What exec or the kernel refused.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let held = held_signals();
        let before = SigSet::thread_get_mask()?;
        held.thread_block()?;
        let signals = SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        set_child_subreaper(Some(rustix::process::getpid()))?;
        // SAFETY: the closure runs between fork and exec of a process with a single thread, and
        // makes two system calls.
        unsafe {
            command.pre_exec(move || {
                before.thread_set_mask()?;
                // Killing the supervisor must end the program. The supervisor has one thread, so
                // the end of the parent's thread is the end of the parent.
                set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        let child = command.spawn()?;
        let main = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { signals, main, pagers: Pagers::default(), asked: None })
    }

    /// Waits until the program has ended, and its pagers have added up their counters or timed out.
    ///
    /// # Errors
    /// poll or wait failed, which does not happen in practice.
    pub fn run(&mut self, tree: &Tree, observer: &mut impl Observer) -> io::Result<Ending> {
        let ending = loop {
            self.sleep(TICK)?;
            self.pass_signals();
            self.tell_patience(observer);
            let ended = self.reap();
            self.watch(tree, observer);
            observer.look();
            if let Some(ending) = ended {
                break ending;
            }
        };
        let deadline = Instant::now() + SETTLE;
        while any_unsettled(tree) && Instant::now() < deadline {
            self.sleep(SETTLE_TICK)?;
            self.reap();
            self.watch(tree, observer);
        }
        let late = Instant::now() >= deadline;
        end_stragglers(tree, late).into_iter().for_each(|object| observer.unheld(object));
        self.hand_over(tree);
        for line in crate::notices::take(tree) {
            observer.say(&line);
        }
        Ok(ending)
    }

    /// Leaves the remaining processes running. Holds the userfaultfds of each until it has a watcher.
    fn hand_over(&mut self, tree: &Tree) {
        tree.unsupervised.store(1, Ordering::Release);
        let deadline = Instant::now() + HAND_OVER;
        while any_unwatched(tree) && Instant::now() < deadline {
            std::thread::sleep(SETTLE_TICK);
            self.reap();
        }
    }

    fn watch(&mut self, tree: &Tree, observer: &mut impl Observer) {
        for line in crate::notices::take(tree) {
            observer.say(&line);
        }
        for pid in self.pagers.watch(tree) {
            observer.say(&format!("process {pid}: {PAGER_ENDED}"));
        }
        if let Some(error) = self.pagers.take_refused() {
            let cause = match error {
                rustix::io::Errno::MFILE => "raise ulimit -n",
                _ => "perhaps a container's seccomp profile forbids it",
            };
            let error = crate::program::plain(&error.into());
            observer.say(&format!(
                "the userfaultfd of a pager can't be held (pidfd_getfd: {error}), {cause}, and the pager made no watcher \
                 that holds it: if that pager is killed, its program reads zeros where pages are far"
            ));
        }
        self.pagers.take_unheld().into_iter().for_each(|object| observer.unheld(object));
    }

    /// Waits for a signal or the end of a pager.
    fn sleep(&self, at_most: Duration) -> io::Result<()> {
        let mut wakers = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        wakers.extend(
            self.pagers.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
        match poll(&mut wakers, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Forwards a signal that was sent only to the supervisor. A terminal's signal reaches the program
    /// directly, because both are in the same process group. So does a signal that a process of the run
    /// sends to that group.
    fn pass_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let number = info.ssi_signo.cast_signed();
            let is_own = number == Signal::CHILD.as_raw() || INTERNAL.contains(&number);
            if is_own || info.ssi_code == SENT_BY_KERNEL || descends_from_here(info.ssi_pid) {
                continue;
            }
            // SAFETY: the kernel names a signal, and it is none of the C library's own.
            let signal = unsafe { Signal::from_raw_unchecked(number) };
            // The program may have ended just now.
            let _ = kill_process(self.main, self.asked_to_end(signal));
        }
    }

    /// The signal to forward. After the user was told what the first request to end waits for, a second
    /// one kills the program.
    fn asked_to_end(&mut self, signal: Signal) -> Signal {
        if signal != Signal::TERM && signal != Signal::INT {
            return signal;
        }
        match self.asked {
            Some(asked) if asked.told => return Signal::KILL,
            Some(_) => {}
            None => self.asked = Some(Asked { by: signal, at: Instant::now(), told: false }),
        }
        signal
    }

    /// Tells the user what the supervisor waits for, if the program does not end on request.
    fn tell_patience(&mut self, observer: &mut impl Observer) {
        let Some(asked) = self.asked.as_mut().filter(|asked| !asked.told) else { return };
        if asked.at.elapsed() < PATIENCE {
            return;
        }
        asked.told = true;
        let (pid, name) = (self.main.as_raw_nonzero(), name_of(self.main));
        let by = if asked.by == Signal::INT { "SIGINT" } else { "SIGTERM" };
        observer.say(&format!(
            "process {pid} ({name}) has not ended {} s after {by}: waiting for it; a second signal \
             kills it",
            PATIENCE.as_secs()
        ));
    }

    /// Reaps every child whose state changed; returns how the program ended.
    fn reap(&self) -> Option<Ending> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WAIT_ALL;
        let mut ending = None;
        while let Ok(Some((pid, status))) = wait(options) {
            if pid != self.main {
                continue;
            }
            if let Some(signal) = status.stopping_signal() {
                self.stop_too(signal);
            }
            ending = ending.or(Ending::of(status));
        }
        ending
    }

    /// The program stopped. The shell watches the supervisor, so the supervisor stops too and
    /// continues the program once it is continued itself. SIGSTOP without a terminal was meant only
    /// for the program: its sender will also continue it.
    fn stop_too(&self, signal: i32) {
        let by_terminal = [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
        if by_terminal.contains(&signal) || File::open("/dev/tty").is_ok() {
            let _ = signal::raise(signal::Signal::SIGSTOP);
            let _ = kill_process(self.main, Signal::CONT);
        }
    }
}

/// A process's name.
fn name_of(pid: Pid) -> String {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    let name = std::fs::read_to_string(path).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Whether a process belongs to the run, whose subreaper is this process.
fn descends_from_here(pid: u32) -> bool {
    let own = std::process::id();
    let parents = std::iter::successors(Some(pid), |&pid| parent_of(pid));
    parents.take(ANCESTORS_MAX).skip(1).any(|parent| parent == own)
}

/// Signals that the supervisor reads instead of being killed by them: all that can be caught.
fn held_signals() -> SigSet {
    SigSet::all()
}
