//! The helper's own side.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, signal};
use rustix::mm::MlockAllFlags;
use spillway_host::{MIN_FREE_FILE, Monitor, min_free_bytes};
use spillway_kernel_nbd::Disk;

use super::command;
use super::protocol::{Answer, Connect, Verb, receive, send};
use crate::hardening;

/// Time limit of programs that only change a setting.
const SHORT: Duration = Duration::from_secs(20);
/// Time limit for a device to appear after its connection.
const APPEARS: Duration = Duration::from_secs(5);
/// Highest priority of swap space.
const PRIORITY_MAX: i32 = 32767;
/// A priority above the kernel's defaults, which are negative.
const PRIORITY: i32 = 100;
/// The label of such swap space.
const LABEL: &str = "spillway";
/// Bytes of a thread's stack, which is locked in memory.
const STACK_BYTES: usize = 256 << 10;
/// Keep-alive interval of the kernel's connection to a lender, in seconds.
const KEEP_ALIVE_S: &str = "5";

/// Serves the daemon until it is gone.
///
/// # Errors
/// Signals can't be ignored.
pub fn run() -> anyhow::Result<ExitCode> {
    for number in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: no handler of ours is installed; the signal is ignored.
        unsafe { signal(number, SigHandler::SigIgn)? };
    }
    rustix::thread::set_name(c"spillway-helper")?;
    let socket = io::stdin();
    let mut helper = Helper::default();
    while let Ok((verb, mut fds)) = receive::<Verb>(&socket) {
        let Some(asker) = fds.pop() else { continue };
        helper.follow(verb, &fds, asker);
    }
    helper.restore_min_free();
    Ok(ExitCode::SUCCESS)
}

fn answer(asker: &OwnedFd, answer: &Answer) {
    // The daemon may have stopped waiting.
    let _ = send(asker, answer, &[]);
}

/// Locks the helper's memory: it must work while memory is short.
fn lock_memory() -> Answer {
    let done = hardening::try_lock(MlockAllFlags::empty());
    done.map(|()| String::new()).map_err(|line| format!("the helper {line}"))
}

/// What the helper created, by path. It touches nothing else.
#[derive(Default)]
struct Helper {
    /// Disks of the kernel, and the number of each.
    attached: BTreeMap<String, u32>,
    /// Devices in direct mode, and the subsystem of each.
    connected: BTreeMap<String, String>,
    /// The kernel's former value.
    min_free_before: Option<u64>,
}

impl Helper {
    fn follow(&mut self, verb: Verb, fds: &[OwnedFd], asker: OwnedFd) {
        let done = match verb {
            Verb::Lock => lock_memory(),
            Verb::Attach { bytes, block_bytes, flags, timeout_s } => {
                let timeout = Duration::from_secs(timeout_s);
                self.attach(&Disk { bytes, block_bytes, flags, timeout }, fds)
            }
            Verb::Detach { index } => self.detach(index),
            Verb::SwapOn { path, .. } => {
                return self.swap(path.clone(), asker, move || swap_on(&path));
            }
            Verb::SwapOff { path, timeout_s } => {
                let limit = Duration::from_secs(timeout_s);
                return self.swap(path.clone(), asker, move || {
                    command::run("swapoff", &[&path], limit).map(|()| path)
                });
            }
            Verb::Connect(connect) => self.connect(&connect),
            Verb::Disconnect { path } => self.disconnect(&path),
            Verb::MinFree { bytes: 0, .. } => {
                self.restore_min_free();
                Ok(String::new())
            }
            Verb::MinFree { bytes, may_change } => self.min_free(bytes, may_change),
        };
        answer(&asker, &done);
    }

    /// Swaps onto a device or off it, on a thread: that waits for the device's pages.
    fn swap(&self, path: String, asker: OwnedFd, work: impl FnOnce() -> Answer + Send + 'static) {
        let asker = Arc::new(asker);
        let its = Arc::clone(&asker);
        let started = self.is_ours(&path).and_then(|()| {
            let thread = thread::Builder::new().name("swap".into()).stack_size(STACK_BYTES);
            let started = thread.spawn(move || answer(&its, &work()));
            started.map(drop).map_err(|error| format!("the helper has no thread left: {error}"))
        });
        if let Err(line) = started {
            answer(&asker, &Err(line));
        }
    }

    fn is_ours(&self, path: &str) -> Result<(), String> {
        if self.attached.contains_key(path) || self.connected.contains_key(path) {
            return Ok(());
        }
        Err(format!("{path} is not a device of this helper"))
    }

    fn attach(&mut self, disk: &Disk, sockets: &[OwnedFd]) -> Answer {
        let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        let index = spillway_kernel_nbd::connect(disk, &sockets).map_err(|it| it.to_string())?;
        self.attached.insert(format!("/dev/nbd{index}"), index);
        Ok(index.to_string())
    }

    fn detach(&mut self, index: u32) -> Answer {
        if self.attached.remove(&format!("/dev/nbd{index}")).is_none() {
            return Err(format!("/dev/nbd{index} is not a disk of this helper"));
        }
        let done = spillway_kernel_nbd::disconnect(index);
        done.map(|()| String::new()).map_err(|error| error.to_string())
    }

    fn connect(&mut self, connect: &Connect) -> Answer {
        // One connection serves all devices of a lender: a further device appears without another
        // connection.
        if !self.connected.values().any(|nqn| *nqn == connect.nqn) {
            // A lender must not control devices or connections that the helper did not create.
            if is_known(&connect.nqn) {
                return Err(format!("this host uses the subsystem {} already", connect.nqn));
            }
            let address = connect.address.ip().to_string();
            let port = connect.address.port().to_string();
            let loss = connect.loss_s.to_string();
            let mut arguments = vec![
                "connect",
                "--transport",
                "tcp",
                "--traddr",
                &address,
                "--trsvcid",
                &port,
                "--nqn",
                &connect.nqn,
                "--keep-alive-tmo",
                KEEP_ALIVE_S,
                "--ctrl-loss-tmo",
                &loss,
                "--reconnect-delay",
                "1",
            ];
            if let Some(secret) = &connect.secret {
                arguments.extend(["--dhchap-secret", secret]);
            }
            let done = command::run("nvme", &arguments, SHORT);
            // The arguments are not logged: they may contain a secret.
            done.map_err(|error| match error.split_once(": ") {
                Some((_, why)) if connect.secret.is_some() => format!("nvme connect: {why}"),
                _ => error,
            })?;
            fail_fast(&connect.nqn, &loss)
                .or_else(|error| self.disconnect_unused(&connect.nqn).and(Err(error)))?;
        }
        let end = Instant::now() + APPEARS;
        loop {
            // Its name appears before it can be opened.
            if let Some(path) = device_of(connect.uuid, &connect.nqn)
                && OpenOptions::new().read(true).write(true).open(&path).is_ok()
            {
                self.connected.insert(path.clone(), connect.nqn.clone());
                return Ok(path);
            }
            if Instant::now() > end {
                self.disconnect_unused(&connect.nqn)?;
                return Err(format!("{} shows no device of the loan", connect.address));
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn disconnect(&mut self, path: &str) -> Answer {
        let nqn = self.connected.remove(path).ok_or_else(|| format!("{path} is not connected"))?;
        self.disconnect_unused(&nqn).map(|()| String::new())
    }

    fn disconnect_unused(&self, nqn: &str) -> Result<(), String> {
        if self.connected.values().any(|other| other == nqn) {
            return Ok(());
        }
        command::run("nvme", &["disconnect", "--nqn", nqn], SHORT)
    }

    fn min_free(&mut self, bytes: u64, may_change: bool) -> Answer {
        let now = min_free_bytes().map_err(|error| format!("{MIN_FREE_FILE}: {error}"))?;
        if now < bytes {
            if !may_change {
                return Err(format!(
                    "vm.min_free_kbytes is {}, which is too little to send pages to other hosts under pressure: \
                     set it to {}, or lend.raise_min_free",
                    now / 1024,
                    bytes / 1024
                ));
            }
            set_min_free(bytes)?;
            self.min_free_before.get_or_insert(now);
        }
        Ok(now.to_string())
    }

    fn restore_min_free(&mut self) {
        if let Some(before) = self.min_free_before.take() {
            // It was writable before, so the operator has changed it since: leave it.
            let _ = set_min_free(before);
        }
    }
}

fn set_min_free(bytes: u64) -> Result<(), String> {
    let text = (bytes / 1024).to_string();
    fs::write(MIN_FREE_FILE, text).map_err(|error| format!("can't set {MIN_FREE_FILE}: {error}"))
}

/// Creates swap space and uses it with the highest priority. Runs no programs: memory is short, and their code would
/// have to be read from a disk.
fn swap_on(path: &str) -> Answer {
    let why = |what: &str, error: &dyn std::fmt::Display| format!("{what} {path}: {error}");
    let swaps = Monitor::open().and_then(|monitor| monitor.swaps());
    let highest = swaps.unwrap_or_default().iter().map(|swap| swap.priority).max();
    let priority = highest.map_or(PRIORITY, |it| it.saturating_add(1).max(PRIORITY));
    let priority = priority.min(PRIORITY_MAX);
    write_header(path).map_err(|error| why("can't make swap space of", &error))?;
    let name = CString::new(path).map_err(|error| why("can't name", &error))?;
    let done = spillway_platform::swap::swap_on(&name, priority as u16);
    done.map_err(|error| why("can't swap onto", &error))?;
    Ok(priority.to_string())
}

fn write_header(path: &str) -> io::Result<()> {
    // O_EXCL refuses a device that is in use.
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let mut device =
        OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path)?;
    let bytes = device.seek(SeekFrom::End(0))?;
    let uuid = spillway_block::fresh_uuid()?;
    let header = spillway_platform::swap::header(bytes, uuid, LABEL);
    let header = header.ok_or_else(|| io::Error::other("it has no length for that"))?;
    device.write_all_at(&header, 0)?;
    device.sync_all()
}

/// Makes requests to a subsystem fail after this many seconds without a connection. Not every nvme-cli has an option
/// for this (Debian 12's has none), but the kernel has a file.
fn fail_fast(nqn: &str, seconds: &str) -> Result<(), String> {
    let controllers = fs::read_dir("/sys/class/nvme").into_iter().flatten().flatten();
    for path in controllers.map(|entry| entry.path()).filter(|path| is_of(path, nqn)) {
        let file = path.join("fast_io_fail_tmo");
        fs::write(&file, seconds)
            .map_err(|error| format!("can't set {}: {error}", file.display()))?;
    }
    Ok(())
}

/// Whether this host has a subsystem of that name.
fn is_known(nqn: &str) -> bool {
    let known = fs::read_dir("/sys/class/nvme-subsystem").into_iter().flatten().flatten();
    known.map(|entry| entry.path()).any(|path| is_of(&path, nqn))
}

/// Whether the sysfs path belongs to the subsystem of that name.
fn is_of(path: &Path, nqn: &str) -> bool {
    fs::read_to_string(path.join("subsysnqn")).is_ok_and(|text| text.trim() == nqn)
}

/// The path of the subsystem's block device that has a UUID.
fn device_of(uuid: u128, nqn: &str) -> Option<String> {
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        if !is_of(&entry.path().join("device"), nqn) {
            continue;
        }
        let text = fs::read_to_string(entry.path().join("uuid")).unwrap_or_default();
        let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
        if u128::from_str_radix(&digits, 16) == Ok(uuid) {
            return Some(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    None
}
