//! A daemon of the test's own.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use spillway_client::Store;
use spillway_test_support::wait::within;
use tempfile::TempDir;

const TICK: Duration = Duration::from_millis(2);

/// A number of the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A daemon with the process that holds its descriptors (its fd store), and a directory for their sockets. Ends with the test.
pub struct Daemon {
    fd_store: Child,
    dir: TempDir,
    /// The process that was killed last.
    killed: std::cell::Cell<u32>,
}

impl Daemon {
    /// Starts one with settings of its own.
    pub fn start(settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillwayd"));
        command.arg("--set").arg(format!("listen.dir={}", dir.path().display()));
        for setting in settings {
            command.args(["--set", setting]);
        }
        // Its lines are for whoever looks at a test that failed.
        let fd_store = command.stdin(Stdio::null()).spawn().unwrap();
        let daemon = Self { fd_store, dir, killed: 0.into() };
        daemon.wait_for_restart(Duration::from_secs(10));
        daemon
    }

    /// The body of an answer over HTTP.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.dir.path().join("api.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n")?;
        write!(stream, "Content-Type: application/json\r\n\r\n")?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let text = || String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(b"HTTP/1.0 20"), "{method} {path}: {}", text());
        Ok(answer.split_off(end + 4))
    }

    /// The daemon's process id; none while it does not answer.
    pub fn pid(&self) -> Option<u32> {
        let answer = self.ask("GET", "/v1/version", b"").ok()?;
        let answer = std::str::from_utf8(&answer).ok()?;
        let (_, rest) = answer.split_once("\"pid\":")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// Kills the daemon, not its fd store.
    pub fn kill(&self) {
        let pid = self.pid().expect("a daemon that answers");
        self.killed.set(pid);
        let raw = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    }

    /// Waits until another daemon than the one that was killed answers.
    pub fn wait_for_restart(&self, time: Duration) {
        let is_another = || self.pid().is_some_and(|pid| pid != self.killed.get());
        within(time, "a daemon", is_another);
    }

    /// Connects over the ring.
    pub fn connect(&self, time: Duration) -> Box<dyn Store> {
        let url = format!("ring:{}", self.dir.path().join("spillway.sock").display());
        let end = Instant::now() + time;
        loop {
            match spillway_client::open(&url) {
                Ok(store) => return store,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            sleep(TICK);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let raw = rustix::process::Pid::from_raw(self.fd_store.id().cast_signed()).unwrap();
        let _ = rustix::process::kill_process(raw, rustix::process::Signal::TERM);
        let _ = self.fd_store.wait();
    }
}
