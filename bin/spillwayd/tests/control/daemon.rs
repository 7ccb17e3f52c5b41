//! A daemon with every listener that needs no certificate.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use spillway_test_support::wait::until_some;

pub const TOKEN: &str = "0123456789abcdef-all";
pub const READ_TOKEN: &str = "0123456789abcdef-read";

/// The daemon, ended with the test.
pub struct Daemon {
    process: Child,
    log: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Daemon {
    pub fn start(dir: &Path) -> Self {
        fs::write(dir.join("token"), TOKEN).unwrap();
        fs::write(dir.join("read-token"), READ_TOKEN).unwrap();
        let settings = [
            format!("listen.dir={}", dir.join("run").display()),
            "listen.api_tcp=127.0.0.1:0".into(),
            format!("listen.api_token_file={}", dir.join("token").display()),
            format!("listen.api_read_token_file={}", dir.join("read-token").display()),
            "listen.nbd_tcp=127.0.0.1:0".into(),
            "listen.nvme_tcp=127.0.0.1:0".into(),
            "store.capacity=64M".into(),
        ];
        let arguments: Vec<_> =
            settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect();
        Self::start_with(dir, &arguments)
    }

    pub fn start_with(dir: &Path, arguments: &[String]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_spillwayd")).args(arguments), dir)
    }

    /// As a service manager starts it that listens to its states at `socket`.
    pub fn start_notifying(dir: &Path, arguments: &[String], socket: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillwayd"));
        Self::start_by(command.args(arguments).env("NOTIFY_SOCKET", socket), dir)
    }

    pub fn start_by(command: &mut Command, dir: &Path) -> Self {
        let log = dir.join("log");
        let output = File::create(&log).unwrap();
        let process = command.stdin(Stdio::null()).stderr(output).spawn().unwrap();
        Self { process, log }
    }

    pub fn stop(&mut self) {
        let raw = rustix::process::Pid::from_raw(self.process.id().cast_signed()).unwrap();
        // It may have ended already.
        let _ = rustix::process::kill_process(raw, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }

    /// Waits until it ends by itself. Gives its exit status.
    pub fn wait(&mut self) -> Option<i32> {
        let Self { process, log } = self;
        let lines = || fs::read_to_string(&*log).unwrap_or_default();
        let what = fmt::from_fn(|f| write!(f, "an end of the daemon: {}", lines()));
        until_some(what, || process.try_wait().unwrap()).code()
    }

    /// Has it read its files again; the lines that it writes until that is done or has failed.
    pub fn reload(&self) -> String {
        self.reload_process(self.process.id().cast_signed())
    }

    /// The same of the process `pid`, a daemon that its keeper has started.
    pub fn reload_process(&self, pid: i32) -> String {
        let before = self.lines().len();
        let raw = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(raw, rustix::process::Signal::HUP).unwrap();
        let what = fmt::from_fn(|f| write!(f, "a reload in {}", self.lines()));
        until_some(what, || {
            let lines = self.lines().split_off(before);
            let done = lines
                .lines()
                .any(|line| line.contains("configuration") && line.contains("reloaded"));
            (done && lines.ends_with('\n')).then_some(lines)
        })
    }

    pub fn lines(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a line that has all of `words`.
    pub fn line(&self, words: &[&str]) -> String {
        let what = fmt::from_fn(|f| write!(f, "a line with {words:?} in {}", self.lines()));
        until_some(what, || {
            let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
            self.lines().lines().find(has_all).map(str::to_owned)
        })
    }
}

/// The status of the answer.
pub fn ask(stream: impl Read + Write, request: &str, token: &str, body: &str) -> u16 {
    answer(stream, request, token, body).split(' ').nth(1).unwrap().parse().unwrap()
}

/// The answer with its head.
pub fn answer(mut stream: impl Read + Write, request: &str, token: &str, body: &str) -> String {
    let bearer = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{bearer}");
    let body = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a metric of the daemon whose sockets are in `dir`/run.
pub fn value(dir: &Path, name: &str) -> f64 {
    let stream = UnixStream::connect(dir.join("run/api.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let metrics = answer(stream, "GET /metrics", "", "");
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

/// The connections that a front end refused or closed for a reason.
pub fn refused(dir: &Path, front_end: &str, reason: &str) -> f64 {
    let labels = format!("frontend=\"{front_end}\",reason=\"{reason}\"");
    value(dir, &format!("spillway_connections_refused_total{{{labels}}}"))
}

/// The address that the line `ready` gives to a setting.
pub fn address<'a>(ready: &'a str, setting: &str) -> &'a str {
    let (_, rest) = ready.split_once(&format!("{setting} ")).unwrap();
    &rest[..rest.find(|c: char| c != '.' && c != ':' && !c.is_ascii_digit()).unwrap()]
}
