//! Calls to agents that work, are slow, end, send garbage or do not exist.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use spillway_guest::{Answer, Call, Error, Reply, ask, give, need};
use spillway_test_support::sockets::UnixServer;

/// Longer than any test takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// An agent that serves one connection, and returns the call that it received.
struct Agent(UnixServer<String>);

impl Agent {
    fn start(reply: impl FnOnce(&mut UnixStream) + Send + 'static) -> Self {
        Self(UnixServer::start(|mut stream| {
            let mut call = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut call).unwrap();
            reply(&mut stream);
            let _ = stream.shutdown(Shutdown::Both);
            call
        }))
    }

    fn socket(&self) -> &Path {
        self.0.path()
    }

    fn says(line: &'static [u8]) -> Self {
        // The client may close the connection before the end of a long line.
        Self::start(move |stream| drop(stream.write_all(line)))
    }
}

#[test]
fn a_program_hears_what_was_granted_and_why_not_more() {
    let agent = Agent::says(b"{\"answer\":{\"granted_bytes\":5,\"why\":\"the pool is dry\"}}\n");
    let answer = need(agent.socket(), 7, LONG).unwrap();
    assert_eq!(answer, Answer { granted_bytes: 5, why: Some("the pool is dry".into()) });
    assert_eq!(agent.0.finish(), "{\"need\":{\"bytes\":7}}\n");

    let agent = Agent::says(b"{\"answer\":{\"granted_bytes\":0}}\n");
    let answer = give(agent.socket(), 7, Duration::MAX).unwrap();
    assert_eq!(answer, Answer { granted_bytes: 0, why: None });
    assert_eq!(agent.0.finish(), "{\"give\":{\"bytes\":7}}\n");

    let agent = Agent::says(b"{\"status\":{\"host\":true,\"reserve_bytes\":1,\"status\":{}}}\n");
    assert!(matches!(
        ask(agent.socket(), &Call::Status, LONG),
        Ok(Reply::Status { host: true, .. })
    ));
}

#[test]
fn a_silent_or_slow_agent_is_left_in_time() {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let silent = Agent::start(move |_| assert!(ended.recv().is_err()));
    let start = Instant::now();
    assert!(matches!(need(silent.socket(), 7, SHORT), Err(Error::Timeout)));
    assert!((SHORT..LONG).contains(&start.elapsed()), "{:?}", start.elapsed());
    drop(end);
    // Each byte arrives within the limit, the whole line does not.
    let slow = Agent::start(|stream| {
        while stream.write_all(b" ").is_ok() {
            thread::sleep(SHORT / 10);
        }
    });
    assert!(matches!(need(slow.socket(), 7, SHORT), Err(Error::Timeout)));
    slow.0.finish();
}

#[test]
fn an_agent_that_accepts_nobody_is_left_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let waiting = UnixStream::connect(&socket).unwrap();
    // Once the listen queue is full, connecting blocks.
    assert!(matches!(need(&socket, 7, SHORT), Err(Error::Timeout)));
    waiting.shutdown(Shutdown::Both).unwrap();
}

#[test]
fn an_agent_that_ends_or_talks_nonsense_is_an_error() {
    for line in [&b""[..], b"{\"answer\":{\"granted_bytes\":5}}"] {
        let agent = Agent::says(line);
        assert!(matches!(need(agent.socket(), 7, LONG), Err(Error::Lost)));
    }
    static ENDLESS: [u8; 1 << 20] = [b'x'; 1 << 20];
    for line in [
        &b"\xff\xfe\n"[..],
        b"\n",
        b"{\"answer\":{\"granted_bytes\":-1}}\n",
        b"{\"answer\":{\"granted_bytes\":9999999999999999}}\n",
        b"{\"answer\":{\"granted_bytes\":0,\"why\":\"\\u001b[2J\"}}\n",
        &ENDLESS,
    ] {
        let error = need(Agent::says(line).socket(), 7, LONG).unwrap_err();
        assert!(matches!(error, Error::Reply(_)), "{error}");
        assert!(error.to_string().len() < 200 && !error.to_string().contains('\u{1b}'), "{error}");
    }
    let agent = Agent::says(b"{\"status\":{\"host\":true,\"reserve_bytes\":1,\"status\":{}}}\n");
    assert!(matches!(need(agent.socket(), 7, LONG), Err(Error::Other)));
}

#[test]
fn no_agent_and_no_amount_are_errors_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let error = need(&socket, 7, LONG).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && error.to_string().contains("spillway-agent"));
    drop(UnixListener::bind(&socket).unwrap());
    assert!(matches!(give(&socket, 7, LONG), Err(Error::Connect { .. })), "it has ended");
    let long = folder.path().join("x".repeat(200));
    assert!(matches!(give(&long, 7, LONG), Err(Error::Connect { .. })));
    for bytes in [0, u64::MAX] {
        assert!(matches!(need(&socket, bytes, LONG), Err(Error::Amount(_))));
    }
}
