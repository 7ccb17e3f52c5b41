//! The HTTP interface, while peers take what they can of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use spillway_api::ServerLimits;
use spillway_test_support::wait::{until, until_some};

use crate::daemon::{Daemon, TOKEN, address, answer, ask};

/// Asks for the version on a connection that stays. The body of the answer; none if the connection is closed.
fn version(stream: &mut (impl Read + Write)) -> Option<String> {
    let head =
        format!("GET /v1/version HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let (mut answer, mut part) = (String::new(), [0; 4096]);
    while !answer.ends_with('}') {
        let length = stream.read(&mut part).ok().filter(|&length| length > 0)?;
        answer.push_str(std::str::from_utf8(&part[..length]).unwrap());
    }
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Some(answer[answer.find('{').unwrap()..].to_owned())
}

#[test]
fn whatever_is_refused_is_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let unix = || UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
    for (request, body, status) in [
        ("GET /v1/clients/none", "", 404),
        ("GET /v1/nothing", "", 404),
        ("DELETE /v1/store", "", 405),
        // The HTTP framework's own words are plain text.
        ("GET /v1/clients/%FF", "", 400),
        ("POST /v1/clients", "{", 400),
    ] {
        let told = answer(unix(), request, "", body);
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {told}");
        assert!(
            head.to_lowercase().contains("content-type: application/problem+json"),
            "{request}: {told}"
        );
        assert!(body.contains(&format!("\"status\":{status}")), "{request}: {told}");
    }
}

#[test]
fn a_floor_above_the_cap_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let asked = |request: &str, body: &str| {
        let unix = UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
        answer(unix, request, "", body)
    };
    let client = r#"{"name":"c","identity":{"uid":1},"target_pages":2048}"#;
    assert!(asked("POST /v1/clients", client).contains(" 201 "));
    let path = "/v1/clients/c";
    let (patch, put) = (format!("PATCH {path}"), format!("PUT {path}/target"));
    let get = || asked(&format!("GET {path}"), "").split_once("\r\n\r\n").unwrap().1.to_owned();
    let refused = |request: &str, body: &str, words: &[&str]| {
        let before = get();
        let told = asked(request, body);
        assert!(told.contains(" 400 ") && told.contains("urn:spillway:floor"), "{told}");
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
        assert_eq!(get(), before);
    };
    refused(&patch, r#"{"floor_pages":3072}"#, &["'c'", "floor 12.0 MiB", "cap 8.0 MiB"]);
    assert!(asked(&patch, r#"{"floor_pages":1024}"#).contains(" 200 "));
    let words = ["floor 4.0 MiB", "cap 2.0 MiB"];
    refused(&put, r#"{"target_pages":512}"#, &words);
    refused(&patch, r#"{"cap_pages":512,"weight":7}"#, &words);
    for both in [r#"{"cap_pages":512,"floor_pages":512}"#, r#"{"weight":7}"#] {
        assert!(asked(&patch, both).contains(" 200 "), "{both}");
    }
}

#[test]
fn a_flood_over_tcp_keeps_nobody_out_of_the_socket() {
    const MORE: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    let ready = daemon.line(&[" ready "]);
    let address = address(&ready, "api_tcp");
    let tcp = || TcpStream::connect(address).unwrap();
    let mut held = Vec::new();
    for _ in 0..ServerLimits::default().connections.of_peer_max {
        let mut stream = tcp();
        assert!(version(&mut stream).is_some());
        held.push(stream);
    }
    for _ in 0..MORE {
        assert_eq!(version(&mut tcp()), None, "one more than a peer may have");
    }
    let unix = UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
    assert_eq!(ask(unix, "GET /v1/version", "", ""), 200);
    let refused = daemon.lines().matches("HTTP over TCP: too many connections").count();
    assert!((1..=8).contains(&refused), "{}", daemon.lines());
    assert_eq!(crate::daemon::refused(dir.path(), "http", "peer"), MORE as f64);
    drop(held.pop());
    until("a place to be free again", || version(&mut tcp()).is_some());
}

#[test]
fn whoever_has_the_token_does_not_give_way_to_strangers() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    let ready = daemon.line(&[" ready "]);
    let address = address(&ready, "api_tcp");
    let mut operator = TcpStream::connect(address).unwrap();
    assert!(version(&mut operator).is_some());
    let silent = ServerLimits::default().connections.slots.unproven_of_peer_max + 4;
    let _silent: Vec<_> = (0..silent).map(|_| TcpStream::connect(address).unwrap()).collect();
    daemon.line(&["HTTP over TCP", "an unauthenticated connection", "peer=127.0.0.1"]);
    assert!(version(&mut operator).is_some());
}

/// Connects to a socket of packets; nobody has accepted it yet.
pub fn packets(path: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

#[test]
fn a_daemon_without_descriptors_serves_when_it_has_some() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let unix = || UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
    let answer = version(&mut unix()).unwrap();
    let (_, pid) = answer.split_once("\"pid\":").unwrap();
    let pid = Pid::from_raw(pid.trim_end_matches('}').parse().unwrap());
    let none = Rlimit { current: Some(0), maximum: getrlimit(Resource::Nofile).maximum };
    let had = prlimit(pid, Resource::Nofile, none).unwrap();
    let mut waiting = unix();
    let _ring = packets(&dir.path().join("run/spillway.sock"));
    let _programs = packets(&dir.path().join("run/programs.sock"));
    let _nbd = UnixStream::connect(dir.path().join("run/nbd.sock")).unwrap();
    let failures = [
        "HTTP: no connection could be accepted",
        "the ring can't accept a connection",
        "a program can't be accepted",
    ];
    let twice = |failure: &str| daemon.lines().matches(failure).count() >= 2;
    until("all to say so twice", || failures.into_iter().all(twice));
    // Two listeners, each with lines of its own: one that has left out some.
    let again = |line: &&str| {
        line.contains("no NBD connection could be accepted") && !line.contains("others=0")
    };
    let nbd =
        until_some("NBD to say so again", || daemon.lines().lines().find(again).map(str::to_owned));
    prlimit(pid, Resource::Nofile, had).unwrap();
    assert!(version(&mut waiting).is_some());
    // Between the two lines it has tried now and then, and not all the time.
    let lines = daemon.lines();
    let seconds =
        failures.map(|failure| lines.lines().filter(|line| line.contains(failure)).nth(1).unwrap());
    for second in seconds.into_iter().chain([nbd.as_str()]) {
        let (_, others) = second.split_once("others=").unwrap();
        let others: u32 = others.split(' ').next().unwrap().parse().unwrap();
        assert!((1..100).contains(&others), "{second}");
    }
}

#[test]
fn version_and_metrics_name_the_build() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let unix = || UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("SPILLWAY_COMMIT"));
    let told = match commit {
        "" => "null".to_owned(),
        commit => format!("\"{commit}\""),
    };
    let answer = self::version(&mut unix()).unwrap();
    assert!(answer.contains(&format!("\"version\":\"{version}\",\"commit\":{told},")), "{answer}");
    let mut stream = unix();
    let request = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let line = format!("spillway_build_info{{version=\"{version}\",commit=\"{commit}\"}} 1\n");
    assert!(metrics.contains(&line), "{metrics}");
}

#[test]
fn the_framework_s_own_refusals_are_problems_too() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let rest = "HTTP/1.1\r\nHost: here\r\nConnection: close\r\n";
    for (request, status) in [
        (format!("DELETE /v1/version {rest}\r\n"), "405"),
        (format!("GET /v1/clients/%ff {rest}\r\n"), "400"),
        // These never reach the framework.
        ("\u{1}\u{2}nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET /v1/version {rest}X: {}", "x".repeat(16 << 10)), "431"),
    ] {
        let mut stream = UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(head.contains("content-type: application/problem+json\r\n"), "{answer}");
        assert!(body.contains(&format!("\"status\":{status},")), "{answer}");
        assert!(head.contains("cache-control: no-store"), "{answer}");
    }
    let uid = rustix::process::getuid().as_raw();
    let line = "HTTP: a request is not valid HTTP";
    daemon.line(&["INFO", line, &format!("by=uid {uid} ")]);

    // One line a second at most, over all connections.
    let began = Instant::now();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
        stream.write_all(b"nonsense\r\n\r\n").unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    let lines = daemon.lines().lines().filter(|it| it.contains(line)).count() as u64;
    let most = 3 + began.elapsed().as_secs();
    assert!(lines <= most, "{lines} lines, {most} at most: {}", daemon.lines());
}
