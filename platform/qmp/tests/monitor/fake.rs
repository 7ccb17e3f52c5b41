//! A fake monitor.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use spillway_qmp::{Error, Monitor};
use spillway_test_support::sockets::UnixServer;
use spillway_test_support::wait::soon;

pub const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}"#;

/// A monitor's socket, and the thread that serves it.
pub struct FakeMonitor(UnixServer<()>);

/// The monitor's end of a connection.
pub struct Peer {
    pub lines: BufReader<UnixStream>,
    pub stream: UnixStream,
}

impl FakeMonitor {
    /// A socket whose first connection is served by `serve`.
    pub fn raw(serve: impl FnOnce(Peer) + Send + 'static) -> Self {
        Self(UnixServer::start(|stream| {
            serve(Peer { lines: BufReader::new(stream.try_clone().unwrap()), stream });
        }))
    }

    /// A fake that sends a greeting and answers `qmp_capabilities` first.
    pub fn new(serve: impl FnOnce(Peer) + Send + 'static) -> Self {
        Self::raw(|mut peer| {
            peer.say(GREETING);
            let request = peer.hear();
            assert_eq!(request["execute"], "qmp_capabilities");
            assert!(request.get("arguments").is_none());
            peer.answer(&request, &json!({}));
            serve(peer);
        })
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn connect(&self) -> Monitor {
        Monitor::connect(self.path(), soon()).unwrap()
    }

    pub fn refusal(&self) -> Error {
        Monitor::connect(self.path(), soon()).unwrap_err()
    }

    /// Waits until the fake has finished, and propagates its panic.
    pub fn finish(self) {
        self.0.finish();
    }
}

impl Peer {
    pub fn say(&mut self, line: &str) {
        let _ = self.stream.write_all(format!("{line}\r\n").as_bytes());
    }

    /// The next line; null if the client is gone.
    pub fn hear(&mut self) -> Value {
        let mut line = String::new();
        let _ = self.lines.read_line(&mut line);
        serde_json::from_str(&line).unwrap_or(Value::Null)
    }

    pub fn answer(&mut self, request: &Value, answer: &Value) {
        self.say(&json!({ "return": answer, "id": request["id"] }).to_string());
    }

    pub fn event(&mut self, name: &str) {
        self.say(&json!({ "event": name, "data": {}, "timestamp": {"seconds": 1} }).to_string());
    }

    /// Expects a command with these arguments, and answers it.
    pub fn expect(&mut self, command: &str, arguments: &Value, answer: &Value) {
        let request = self.hear();
        assert_eq!(request["execute"], command);
        assert_eq!(request.get("arguments").unwrap_or(&Value::Null), arguments);
        self.answer(&request, answer);
    }

    /// Waits until the client is gone.
    pub fn wait(mut self) {
        while !self.hear().is_null() {}
    }
}

pub fn ask(monitor: &mut Monitor) -> Result<Value, Error> {
    monitor.execute("query-status", Value::Null, soon())
}

pub fn readable(monitor: &Monitor) -> bool {
    let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
    poll(&mut [PollFd::new(&monitor.as_fd(), PollFlags::IN)], Some(&timeout)).unwrap() == 1
}
