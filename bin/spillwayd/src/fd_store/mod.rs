//! The fd store: a process that holds the store's memory while a killed daemon is restarted. The
//! setting is `process.keeper`.
//!
//! Without a service manager, `spillwayd` begins as this small process. It starts the daemon, and
//! opens only a socket. There it takes descriptors as systemd does (FDSTORE=1, FDNAME=). It passes
//! them to the next daemon as systemd does (LISTEN_FDS), and ends when the daemon ends normally.

mod locked;

use std::env;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::{Context, ensure};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, getsockname, recvmsg, socket_with, sockopt,
};

use crate::config::MemoryLock;
use crate::fd_store::locked::LockedMapping;

/// Environment variable by which a daemon knows that an fd store started it.
pub const MARK: &str = "SPILLWAY_KEEPER";
/// The most descriptors in the store.
const KEPT_MAX: usize = 512;
/// Descriptors of one message.
const MESSAGE_FDS_MAX: usize = 16;
/// Longest message.
const MESSAGE_BYTES_MAX: usize = 4096;
/// The first descriptor that the daemon inherits, as with systemd.
const LISTEN_FDS_START: i32 = 3;
/// After this many deaths in a row before it is ready, the daemon is not restarted.
const DEATHS_MAX: u32 = 5;

/// Whether no service manager stores descriptors or passes sockets.
pub fn is_needed() -> bool {
    env::var_os("NOTIFY_SOCKET").is_none() && env::var_os("LISTEN_FDS").is_none()
}

/// Runs the daemon, and restarts it after each death, until it ends normally.
///
/// # Errors
/// The daemon can't be started, or dies again and again.
pub fn run(lock: MemoryLock) -> anyhow::Result<ExitCode> {
    // Before the daemon is started, so that none of its signals is missed.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD] {
        signals.add(signal);
    }
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals_fd = signals
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&signals, flags))
        .context("the keeper can't take signals")?;
    rustix::thread::set_name(c"spillway-keeper").context("the keeper can't set its name")?;
    let mut store = FdStore::new(signals)?;
    let mut deaths = 0;
    loop {
        let status = store.watch(&signals_fd)?;
        if let Some(code) = status.code() {
            return Ok(ExitCode::from(code.to_le_bytes()[0]));
        }
        if store.stopping {
            return Ok(ExitCode::SUCCESS);
        }
        deaths = if std::mem::take(&mut store.ready) { 0 } else { deaths + 1 };
        ensure!(
            deaths < DEATHS_MAX,
            "the daemon died {DEATHS_MAX} times before it was ready ({status})"
        );
        eprintln!("spillwayd: the daemon died ({status}); restarting it with its store");
        store.child = store.start()?;
        if lock != MemoryLock::Off {
            // While the daemon starts, so that this does not delay it.
            store.locked =
                store.kept.iter().filter_map(|(_, file)| LockedMapping::new(file)).collect();
        }
    }
}

struct FdStore {
    program: PathBuf,
    socket: OwnedFd,
    address: String,
    signals: SigSet,
    kept: Vec<(String, OwnedFd)>,
    /// The mappings that are locked until the daemon locks them itself.
    locked: Vec<LockedMapping>,
    child: Child,
    /// Whether the daemon has reported that it is ready.
    ready: bool,
    stopping: bool,
}

impl FdStore {
    fn new(signals: SigSet) -> anyhow::Result<Self> {
        let program = fs::read_link("/proc/self/exe").context("can't find this program")?;
        let (socket, name) = listen().context("the keeper can't open its socket")?;
        let name = name.abstract_name().context("the kernel gave no abstract name")?;
        let address = format!("@{}", String::from_utf8_lossy(name));
        let child = spawn(&program, &address, &signals, &[])?;
        Ok(Self {
            program,
            socket,
            address,
            signals,
            kept: Vec::new(),
            locked: Vec::new(),
            child,
            ready: false,
            stopping: false,
        })
    }

    fn start(&self) -> anyhow::Result<Child> {
        spawn(&self.program, &self.address, &self.signals, &self.kept)
    }

    /// Takes the daemon's messages until it ends.
    fn watch(&mut self, signals: &SignalFd) -> anyhow::Result<ExitStatus> {
        loop {
            let mut fds = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("the keeper can't wait for the daemon"),
            }
            while let Some(info) = signals.read_signal().context("the keeper can't read signals")? {
                self.pass_on(info.ssi_signo);
            }
            // Still reads the messages that the daemon sent before it ended.
            let ended = self.child.try_wait().context("the keeper can't wait for the daemon")?;
            while self.take_message()? {}
            if let Some(status) = ended {
                return Ok(status);
            }
        }
    }

    /// Passes a signal on to the daemon.
    fn pass_on(&mut self, number: u32) {
        let Ok(signal) = Signal::try_from(number.cast_signed()) else { return };
        if signal == Signal::SIGCHLD {
            return;
        }
        self.stopping |= signal != Signal::SIGHUP;
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        match nix::sys::signal::kill(pid, signal) {
            // A daemon that has ended needs no signal; its end is noticed next.
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => eprintln!("spillwayd: can't pass {signal} on to process {pid}: {error}"),
        }
    }

    /// Takes one message from the socket. Returns false if there is none.
    fn take_message(&mut self) -> anyhow::Result<bool> {
        let mut text = [0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit();
            rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut text)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let length = match received {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => return Ok(true),
            Err(error) => return Err(error).context("the keeper can't read the daemon's messages"),
        };
        let mut fds = Vec::new();
        let mut from_child = false;
        for message in ancillary.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(rights) => fds.extend(rights),
                RecvAncillaryMessage::ScmCredentials(sender) => {
                    from_child = sender.pid.as_raw_nonzero().get() == self.child.id().cast_signed();
                }
                _ => {}
            }
        }
        if from_child {
            self.follow(&String::from_utf8_lossy(&text[..length]), fds);
        }
        Ok(true)
    }

    /// Executes a message as systemd would. Unknown lines are ignored.
    fn follow(&mut self, text: &str, fds: Vec<OwnedFd>) {
        if text.lines().any(|line| line == "READY=1") {
            self.ready = true;
            self.locked.clear();
        }
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
        if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
            self.kept.retain(|(known, _)| known != name);
        }
        if text.lines().any(|line| line == "FDSTORE=1") {
            let room = KEPT_MAX.saturating_sub(self.kept.len());
            self.kept.extend(fds.into_iter().take(room).map(|fd| (name.to_owned(), fd)));
        }
    }
}

/// Opens the socket for the daemon's messages, to which the kernel gives a unique abstract name.
fn listen() -> Result<(OwnedFd, SocketAddrUnix), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_unnamed())?;
    sockopt::set_socket_passcred(&socket, true)?;
    let name = SocketAddrUnix::try_from(getsockname(&socket)?)?;
    Ok((socket, name))
}

/// Starts the daemon with this process's arguments and the stored descriptors.
fn spawn(
    program: &Path,
    address: &str,
    signals: &SigSet,
    kept: &[(String, OwnedFd)],
) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1)).env("NOTIFY_SOCKET", address).env(MARK, "1");
    if !kept.is_empty() {
        let names: Vec<_> = kept.iter().map(|(name, _)| name.as_str()).collect();
        command.env("LISTEN_FDS", kept.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    }
    // Copies with numbers above those that the daemon expects, made before the fork.
    let above = LISTEN_FDS_START + kept.len() as i32;
    let copies: Vec<OwnedFd> = kept
        .iter()
        .map(|(_, fd)| rustix::io::fcntl_dupfd_cloexec(fd, above))
        .collect::<Result<_, _>>()?;
    let sources: Vec<i32> = copies.iter().map(AsRawFd::as_raw_fd).collect();
    let signals = *signals;
    let install_descriptors = move || {
        for (place, &source) in (LISTEN_FDS_START..).zip(&sources) {
            // SAFETY: both are numbers; the copy lives until the program is executed, and is not
            // closed by that.
            if unsafe { libc::dup2(source, place) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        signals.thread_unblock().map_err(io::Error::from)
    };
    // SAFETY: the closure makes system calls only, and does not allocate.
    unsafe { command.pre_exec(install_descriptors) };
    let child = command.spawn().context("can't start the daemon")?;
    Ok(child)
}
