//! Settings that outlast the daemon, or follow a client to another daemon.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use rustix::fs::{CWD, FileType, mknodat};
use spillway_test_support::wait::{PATIENCE, until};

use crate::daemon::Daemon;

/// A daemon whose settings are in a file, with a keeper.
fn start(dir: &Path, memory: &str) -> Daemon {
    configure(dir, memory);
    let config = dir.join("spillwayd.toml");
    let daemon = Daemon::start_with(dir, &["--config".to_owned(), config.display().to_string()]);
    daemon.line(&[" ready "]);
    daemon
}

fn configure(dir: &Path, memory: &str) {
    let run = dir.join("run").display().to_string();
    let text =
        format!("[listen]\ndir = \"{run}\"\n[store]\ncapacity = \"64M\"\n[memory]\n{memory}\n");
    fs::write(dir.join("spillwayd.toml"), text).unwrap();
}

/// The body of an answer; none while nobody answers.
fn try_ask(dir: &Path, request: &str, body: &[u8]) -> Option<Vec<u8>> {
    let mut stream = UnixStream::connect(dir.join("run/api.sock")).ok()?;
    let length = body.len();
    // The body of an answer of HTTP/1.0 has no chunks.
    let head = format!("{request} HTTP/1.0\r\nContent-Length: {length}\r\n");
    let head = head + "Content-Type: application/json\r\n\r\n";
    stream.write_all(&[head.as_bytes(), body].concat()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    assert!(answer.starts_with(b"HTTP/1.0 20"), "{request}: {}", String::from_utf8_lossy(&answer));
    Some(answer.split_off(end + 4))
}

/// The process id of the daemon; none while none answers.
fn pid(dir: &Path) -> Option<i32> {
    let version = String::from_utf8(try_ask(dir, "GET /v1/version", b"")?).unwrap();
    let (_, rest) = version.split_once("\"pid\":").unwrap();
    Some(rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
}

fn ask(dir: &Path, request: &str, body: &str) -> String {
    String::from_utf8(try_ask(dir, request, body.as_bytes()).unwrap()).unwrap()
}

/// Kills the daemon and waits for the next one.
fn kill(dir: &Path) {
    let killed = pid(dir).unwrap();
    let raw = rustix::process::Pid::from_raw(killed).unwrap();
    rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    until("another daemon", || pid(dir).is_some_and(|pid| pid != killed));
}

const SMART: &str = r#"{"policy":"smart-alloc","p":0.75,"threshold_pages":100,"interval_ms":2500}"#;

#[test]
fn a_policy_that_was_set_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start(dir, "policy = \"static-alloc\"");
    assert_eq!(ask(dir, "PUT /v1/policy", SMART), SMART);
    kill(dir);
    assert_eq!(ask(dir, "GET /v1/policy", ""), SMART);
    daemon.line(&["the policy that was set", "smart-alloc", "2500"]);
    // A reload of what has not changed leaves it, also after the kill.
    daemon.reload_process(pid(dir).unwrap());
    assert_eq!(ask(dir, "GET /v1/policy", ""), SMART);
    // Changing the interval alone in the file leaves the policy.
    configure(dir, "policy = \"static-alloc\"\ninterval_ms = 3000");
    daemon.reload_process(pid(dir).unwrap());
    let mixed = SMART.replace("2500", "3000");
    assert_eq!(ask(dir, "GET /v1/policy", ""), mixed);
    kill(dir);
    assert_eq!(ask(dir, "GET /v1/policy", ""), mixed);
}

#[test]
fn a_changed_file_replaces_a_policy_that_was_set() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _daemon = start(dir, "policy = \"static-alloc\"");
    ask(dir, "PUT /v1/policy", SMART);
    configure(dir, "policy = \"utility\"");
    kill(dir);
    let policy = ask(dir, "GET /v1/policy", "");
    assert!(policy.contains("\"utility\"") && policy.contains("2500"), "{policy}");
}

#[test]
fn the_daemon_answers_while_a_reload_waits_for_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _daemon = start(dir, "policy = \"static-alloc\"");
    let file = dir.join("spillwayd.toml");
    let text = fs::read_to_string(&file).unwrap().replace("static-alloc", "utility");
    fs::remove_file(&file).unwrap();
    mknodat(CWD, &file, FileType::Fifo, 0o600.into(), 0).unwrap();
    let here = dir.to_owned();
    let reload = thread::spawn(move || ask(&here, "POST /v1/reload", ""));
    // It opens as soon as the daemon reads it.
    let mut pipe = fs::File::options().write(true).open(&file).unwrap();
    let (said, answered) = mpsc::channel();
    let here = dir.to_owned();
    thread::spawn(move || said.send(ask(&here, "GET /v1/health", "")));
    answered.recv_timeout(PATIENCE).expect("an answer during the reload");
    pipe.write_all(text.as_bytes()).unwrap();
    drop(pipe);
    assert!(reload.join().unwrap().contains("renewed"));
    assert!(ask(dir, "GET /v1/policy", "").contains("\"utility\""));
}

#[test]
fn cap_floor_and_weight_move_with_a_client() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (from.path(), to.path());
    let _daemons = [start(from, ""), start(to, "")];
    for (name, uid) in [("c", 1), ("d", 2)] {
        for dir in [from, to] {
            let client = format!(r#"{{"name":"{name}","identity":{{"uid":{uid}}}}}"#);
            ask(dir, "POST /v1/clients", &client);
        }
        let change = r#"{"cap_pages":1000,"floor_pages":10,"weight":3}"#;
        ask(from, &format!("PATCH /v1/clients/{name}"), change);
    }
    // What has been said of a client where it goes holds.
    ask(to, "PATCH /v1/clients/d", r#"{"cap_pages":500}"#);
    for name in ["c", "d"] {
        let stream = try_ask(from, &format!("POST /v1/clients/{name}/export"), b"").unwrap();
        try_ask(to, &format!("POST /v1/clients/{name}/import"), &stream).unwrap();
    }
    // The target follows the cap; and all lasts as if it had been set there.
    for killed in [false, true] {
        if killed {
            kill(to);
        }
        for (name, cap) in [("c", 1000), ("d", 500)] {
            let client = ask(to, &format!("GET /v1/clients/{name}"), "");
            let its = [
                format!("\"cap_pages\":{cap},\"floor_pages\":10,\"weight\":3"),
                format!("\"target_pages\":{cap}"),
            ];
            assert!(its.iter().all(|it| client.contains(it)), "{its:?} in {client}");
        }
    }
}
