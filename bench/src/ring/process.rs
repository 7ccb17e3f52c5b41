//! The servers' processes: they run on the second core and end with the benchmark.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::built;

/// Limit of the time until a server listens.
const START: Duration = Duration::from_secs(10);

/// Whether the ring's server polls for commands before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    Yes,
    No,
}

/// A server with its own folder. Both are removed when this is dropped.
pub struct Child {
    process: std::process::Child,
    folder: PathBuf,
    socket: PathBuf,
}

/// The core that servers run on.
pub const SERVER_CORE: usize = 1;

/// Pins the calling thread, and the processes that it starts, to a core.
pub fn pin(core: usize) -> std::io::Result<()> {
    // SAFETY: all zeros is a valid set, which outlives the call.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

impl Child {
    /// The ring's server with an empty store.
    pub fn ring_server(polling: Polling) -> anyhow::Result<Self> {
        let program = built()?.join("bench-ring-server");
        let poll_us = if polling == Polling::Yes { "50" } else { "0" };
        Self::start("ring", |socket| {
            let mut command = Command::new(program);
            command.arg(socket).arg(poll_us);
            command
        })
    }

    /// memcached with one thread, like the others.
    pub fn memcached() -> anyhow::Result<Self> {
        Self::start("memcached", |socket| {
            let mut command = Command::new("memcached");
            command.args(["-u", "root", "-m", "1024", "-t", "1", "-s"]).arg(socket);
            command
        })
    }

    /// Redis without persistence.
    pub fn redis() -> anyhow::Result<Self> {
        Self::start("redis", |socket| {
            let mut command = Command::new("redis-server");
            command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
            command.arg(socket);
            command
        })
    }

    fn start(name: &str, command: impl FnOnce(&Path) -> Command) -> anyhow::Result<Self> {
        static STARTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = format!("spillway-bench-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir(&folder)?;
        let socket = folder.join("socket");
        let mut command = command(&socket);
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: between fork and exec this makes one system call on its own memory.
        let process = unsafe { command.pre_exec(|| pin(SERVER_CORE)) }.spawn();
        let process = process.with_context(|| format!("can't start {name}; is it installed?"))?;
        let mut child = Self { process, folder, socket };
        let start = Instant::now();
        while !child.socket.exists() {
            ensure!(child.process.try_wait()?.is_none(), "{name} ended at once");
            ensure!(start.elapsed() < START, "{name} does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        // The socket's name appears a moment before the socket listens.
        thread::sleep(Duration::from_millis(50));
        Ok(child)
    }

    /// The socket on which it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// CPU time used so far, ms.
    pub fn cpu_ms(&self) -> anyhow::Result<f64> {
        cpu_ms(&self.process.id().to_string())
    }

    /// Stops it.
    pub fn end(&mut self) -> anyhow::Result<()> {
        ensure!(self.process.try_wait()?.is_none(), "a server ended before the benchmark did");
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already. A folder that can't be removed is among temporary files.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// CPU time that this process has used so far, ms.
pub fn own_cpu_ms() -> anyhow::Result<f64> {
    cpu_ms("self")
}

/// The sum of the CPU times of all threads (`/proc/PID/task/TID/schedstat`), ms.
fn cpu_ms(process: &str) -> anyhow::Result<f64> {
    let mut sum_ns = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        sum_ns += text.split(' ').next().context("an empty schedstat")?.parse::<u64>()?;
    }
    Ok(sum_ns as f64 / 1e6)
}
