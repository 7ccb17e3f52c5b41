//! Processes: handles to them, and what /proc tells about them.

use crate::dispatch::{Disposition, set_disposition};
use crate::sys::{number, syscall6};
use crate::task::set_signal_mask;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A process, through a pidfd, so that reuse of its pid has no effect.
#[derive(Debug)]
pub struct Program {
    pid: Pid,
    descriptor: OwnedFd,
}

impl Program {
    /// Opens the process with this pid.
    ///
    /// # Errors
    /// If it has ended or no descriptor is free.
    pub fn open(pid: u32) -> Result<Self, Errno> {
        let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
        Ok(Self { pid, descriptor: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// The pidfd, which is readable once the process has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether any of its threads runs in the caller's address space. False once it has called exec. Still true if only
    /// its main thread has ended.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        let pid = self.pid.as_raw_pid() as usize;
        thread_shares_memory(pid)
            || self.threads().is_none_or(|mut ids| ids.any(thread_shares_memory))
    }

    /// The ids of its threads; None if they can't be listed.
    fn threads(&self) -> Option<impl Iterator<Item = usize>> {
        let folder = self.open_entry("task", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let entries = rustix::fs::Dir::new(folder).ok()?;
        Some(entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()))
    }

    /// Opens what /proc has of it under this name. Allocates no memory.
    fn open_entry(&self, name: &str, flags: OFlags) -> Option<OwnedFd> {
        let mut path = [0u8; 32];
        let mut end = &mut path[..31];
        let pid = self.pid.as_raw_pid();
        std::io::Write::write_fmt(&mut end, format_args!("/proc/{pid}/{name}")).ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        rustix::fs::open(path, flags, Mode::empty()).ok()
    }

    /// Writes a line to its standard error, unless that would block. Where the kernel lets nobody copy descriptors,
    /// standard error can't be a socket.
    pub fn say(&self, line: &[u8]) {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::NONBLOCK;
        let error = pidfd_getfd(&self.descriptor, 2, PidfdGetfdFlags::empty()).ok();
        let Some(error) = error.or_else(|| self.open_entry("fd/2", flags)) else { return };
        let mut ready = [PollFd::new(&error, PollFlags::OUT)];
        if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
            let _ = rustix::io::write(&error, line);
        }
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Kills it with SIGKILL.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }
}

/// A process's `/proc/PID/stat` (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// State of its main thread: `Z` if that has ended.
    pub state: u8,
    /// Number of its threads that have not been reaped.
    pub threads: u32,
    /// Its start time, clock ticks since boot.
    pub start_ticks: u64,
    /// Exit status of its main thread, as in wait(2); 0 if the kernel does not report it.
    pub exit_status: i32,
}

impl Stat {
    /// Reads it from a process's folder in /proc, or from `/proc/self`.
    ///
    /// # Errors
    /// `NOENT` or `SRCH` if there is no such process.
    pub fn read(folder: impl AsFd) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, c"stat", flags, Mode::empty())?;
        let mut text = [0u8; 1024];
        let length = rustix::io::read(&file, &mut text)?;
        Self::parse(&text[..length]).ok_or(Errno::INVAL)
    }

    /// Reads it for the calling process.
    ///
    /// # Errors
    /// If there is no /proc.
    pub fn of_caller() -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::read(rustix::fs::open(c"/proc/self", flags, Mode::empty())?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let field = |number| field_of_stat(text, number);
        Some(Self {
            state: *field(3)?.as_bytes().first()?,
            threads: field(20)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
            exit_status: field(52)?.parse().ok()?,
        })
    }

    /// Whether all its threads have ended. It may still wait to be reaped.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }
}

/// A process by its open folder in /proc, which never stands for another process. The process may be outside the
/// caller's pid namespace.
#[derive(Debug)]
pub struct ProcFolder(OwnedFd);

impl ProcFolder {
    /// Opens the process with this pid that started at `start_ticks`.
    ///
    /// # Errors
    /// If there is no such process, or no /proc.
    pub fn open(number: u32, start_ticks: u64) -> Result<Self, Errno> {
        let folder = Self::of(number)?;
        let same = Stat::read(&folder.0)?.start_ticks == start_ticks;
        if same { Ok(folder) } else { Err(Errno::SRCH) }
    }

    /// Opens the process that has this pid now.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of(number: u32) -> Result<Self, Errno> {
        let mut path = [0u8; 24];
        std::io::Write::write_fmt(&mut &mut path[..23], format_args!("/proc/{number}"))
            .map_err(|_| Errno::INVAL)?;
        let path = core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        Stat::read(&self.0).map_or(true, |stat| stat.has_ended())
    }
}

/// Whether orphaned descendants of the caller become its children: it is process 1 of its pid namespace, or a subreaper
/// (prctl(2)).
pub fn adopts_orphans() -> bool {
    const PR_GET_CHILD_SUBREAPER: usize = 37;
    let mut is_subreaper = 0i32;
    let args = [PR_GET_CHILD_SUBREAPER, &raw mut is_subreaper as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes one int.
    let answer = unsafe { syscall6(number::PRCTL, args) };
    rustix::process::getpid().is_init() || answer.is_ok() && is_subreaper != 0
}

/// The caller's pid in the namespace of the mounted /proc. That is the supervisor's pid namespace, even if the caller
/// runs in one of its own. Without /proc, the caller's pid in its own namespace.
pub fn own_number() -> u32 {
    number_behind(c"/proc/self").unwrap_or(rustix::process::getpid().as_raw_pid() as u32)
}

/// The calling thread's id in the namespace of [`own_number`].
pub fn own_thread_number() -> u32 {
    let own = || rustix::thread::gettid().as_raw_pid() as u32;
    number_behind(c"/proc/thread-self").unwrap_or_else(own)
}

/// The number at the end of a procfs link's target.
fn number_behind(link: &core::ffi::CStr) -> Option<u32> {
    let mut path = [0u8; 64];
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, link, &mut path).ok()?;
    let last = path[..length].rsplit(|&byte| byte == b'/').next()?;
    core::str::from_utf8(last).ok()?.parse().ok()
}

/// Ends this process by a signal whose default action ends it.
pub fn die_by(signal: Signal) -> ! {
    // SAFETY: the default action runs no code of this process.
    let _ = unsafe { set_disposition(signal.as_raw(), &Disposition::DEFAULT) };
    set_signal_mask(0);
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    crate::sys::exit_process(128 + signal.as_raw())
}

/// Writes the numbers of the cores that the caller may run on to `cores`, and returns how many it wrote.
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

/// The core on which a thread last ran, if /proc reports it.
pub fn core_of_thread(process: u32, thread: u32) -> Option<usize> {
    let text = read_small(format_args!("/proc/{process}/task/{thread}/stat"))?;
    field_of_stat(&text, 39)?.parse().ok()
}

/// The beginning of a small file of /proc. Allocates no memory.
fn read_small(path: core::fmt::Arguments<'_>) -> Option<[u8; 1024]> {
    let mut name = [0u8; 48];
    std::io::Write::write_fmt(&mut &mut name[..47], path).ok()?;
    let name = core::ffi::CStr::from_bytes_until_nul(&name).ok()?;
    let file = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [b' '; 1024];
    rustix::io::read(&file, &mut text).ok()?;
    Some(text)
}

/// A field of `/proc/PID/stat`, by its number in proc(5), at least 3.
fn field_of_stat(text: &[u8], number: usize) -> Option<&str> {
    // Field 2, the name, can contain any characters, also parentheses.
    let after = text.iter().rposition(|&byte| byte == b')')? + 1;
    core::str::from_utf8(&text[after..]).ok()?.split_ascii_whitespace().nth(number - 3)
}

/// Pins the calling thread to one core.
pub fn pin_to_core(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

/// Whether the thread with this id runs in the caller's address space; true if the kernel does not tell.
fn thread_shares_memory(thread: usize) -> bool {
    let own = rustix::process::getpid().as_raw_pid() as usize;
    compares_equal(own, thread).unwrap_or_else(|| has_layout_of_caller(thread))
}

/// Whether a thread's address space is laid out as the caller's, of which it is or was part: exec lays out another, at random
/// addresses. For systems that forbid kcmp, as Docker's seccomp profile does. True if /proc does not tell.
fn has_layout_of_caller(thread: usize) -> bool {
    /// What the kernel shows those who may not know.
    const HIDDEN: u64 = 1;
    let (Some(own), Some(other)) = (layout_of("self"), layout_of(thread)) else { return true };
    own[0] == HIDDEN || other[0] == HIDDEN || own == other
}

/// Where the parts of an address space begin and end: code, stack, data, arguments, environment. Zeros once a process has ended.
fn layout_of(process: impl std::fmt::Display) -> Option<[u64; 10]> {
    let text = read_small(format_args!("/proc/{process}/stat"))?;
    let mut layout = [0; 10];
    for (part, field) in layout.iter_mut().zip((26..=28).chain(45..=51)) {
        *part = field_of_stat(&text, field)?.parse().ok()?;
    }
    Some(layout)
}

/// Whether any process other than the caller and `but` runs in the caller's address space. Kills these if `kill` is
/// set.
pub fn others_share_memory(but: u32, kill: bool) -> bool {
    let own = rustix::process::getpid().as_raw_pid() as usize;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let folder = rustix::fs::open(c"/proc", flags, rustix::fs::Mode::empty());
    let Ok(entries) = folder.and_then(rustix::fs::Dir::new) else { return false };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok());
    let mut found = false;
    for process in numbers.filter(|&process: &usize| process != own && process != but as usize) {
        if compares_equal(own, process) == Some(true) {
            found = true;
            if let Some(pid) = Pid::from_raw(process as i32).filter(|_| kill) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
    found
}

/// Whether two tasks share an address space; None if the kernel does not tell.
fn compares_equal(one: usize, other: usize) -> Option<bool> {
    const KCMP_VM: usize = 1;
    // SAFETY: kcmp takes no pointers for this kind of comparison.
    match unsafe { syscall6(number::KCMP, [one, other, KCMP_VM, 0, 0, 0]) } {
        Ok(order) => Some(order == 0),
        Err(Errno::SRCH) => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "77 (a ) b) Z 1 77 77 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 4 0 123456 0 0 0 0 0 0 0 0 0 0 \
        0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 768\n";

    #[test]
    fn a_line_of_stat_is_read_behind_the_name() {
        let stat = Stat::parse(LINE.as_bytes()).unwrap();
        let wanted = Stat { state: b'Z', threads: 4, start_ticks: 123_456, exit_status: 768 };
        assert_eq!(stat, wanted);
        assert!(!stat.has_ended(), "three threads still run");
        assert!(Stat { threads: 1, ..stat }.has_ended());
        assert_eq!(field_of_stat(LINE.as_bytes(), 39), Some("1"));
        assert_eq!(Stat::parse(b"77 (name"), None);
        assert_eq!(Stat::parse(b"77 (name) S 1"), None);
    }

    #[test]
    fn a_threads_core_is_the_one_that_it_runs_on() {
        let mut cores = [0; 64];
        let count = usable_cores(&mut cores);
        for core in cores[..count].iter().copied() {
            std::thread::spawn(move || {
                pin_to_core(core);
                let thread = rustix::thread::gettid().as_raw_pid() as u32;
                assert_eq!(core_of_thread(std::process::id(), thread), Some(core));
            })
            .join()
            .unwrap();
        }
        assert_eq!(core_of_thread(std::process::id(), u32::MAX), None);
    }

    #[test]
    fn an_address_space_is_known_by_its_layout() {
        let own = std::process::id() as usize;
        assert!(has_layout_of_caller(own));
        let thread = std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_pid() as usize;
            assert!(has_layout_of_caller(thread));
        });
        thread.join().unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = other.id() as usize;
        assert!(!has_layout_of_caller(pid), "exec made another");
        other.kill().unwrap();
        while Stat::read(&ProcFolder::of(other.id()).unwrap().0).unwrap().state != b'Z' {
            std::thread::yield_now();
        }
        assert!(!has_layout_of_caller(pid), "it has ended");
        other.wait().unwrap();
        assert!(has_layout_of_caller(pid), "nobody knows");
    }

    #[test]
    fn a_folder_stands_for_one_process_only() {
        let own = own_number();
        assert_eq!(own, std::process::id());
        let start_ticks = Stat::read(&ProcFolder::of(own).unwrap().0).unwrap().start_ticks;
        assert!(!ProcFolder::open(own, start_ticks).unwrap().has_ended());
        assert_eq!(ProcFolder::open(own, start_ticks + 1).unwrap_err(), Errno::SRCH);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let folder = ProcFolder::of(child.id()).unwrap();
        assert!(!folder.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(folder.has_ended());
    }
}
