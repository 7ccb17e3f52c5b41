//! What the command says when it can't do what is wanted, and of which build it is.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread;

fn spillway(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    command.args(arguments).env_remove("SPILLWAY_API").output().unwrap()
}

/// A daemon that answers one request; where it listens, and a thread that ends with the request.
fn daemon_that_answers(
    status: &str,
    kind: &str,
    body: &'static str,
) -> (tempfile::TempDir, String, thread::JoinHandle<String>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let daemon = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let request = read_request(&mut stream);
        write!(stream, "{head}{body}").unwrap();
        request
    });
    (dir, socket.display().to_string(), daemon)
}

/// A request, with as long a body as its head says.
fn read_request(stream: &mut impl Read) -> String {
    let mut request = String::new();
    loop {
        if let Some((head, body)) = request.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return request;
            }
        }
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "half a request: {request}");
        request.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

/// The one line of an error, and the exit status.
fn refused(arguments: &[&str]) -> (String, i32) {
    let output = spillway(arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(output.stdout.is_empty(), "{line}");
    (line.trim_end().to_owned(), output.status.code().unwrap())
}

#[test]
fn the_version_names_the_commit() {
    let shown = String::from_utf8(spillway(&["--version"]).stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    match env!("SPILLWAY_COMMIT") {
        "" => assert_eq!(shown, format!("spillway {version}\n")),
        commit => assert_eq!(shown, format!("spillway {version} ({commit})\n")),
    }
}

#[test]
fn a_mistake_is_one_line_that_helps() {
    let (line, status) = refused(&["stat", "--api", "unix:///blade"]);
    assert!(line.starts_with("spillway: --api unix:///blade: unix:// does not work"), "{line}");
    assert!(line.contains("http://HOST:PORT") && status == 2, "{line}");
    // The environment's too.
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    let output = command.arg("stat").env("SPILLWAY_API", "unix:///blade").output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("SPILLWAY_API unix:///blade: unix:// does not work"), "{line}");
    assert_eq!(output.status.code(), Some(2));
    let (line, status) = refused(&["client", "add", "bob", "--taget", "1G"]);
    assert!(line.contains("'--target'") && line.contains("spillway client add --help"), "{line}");
    assert_eq!(status, 2);
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let read = |(line, status): (String, i32)| -> (serde_json::Value, i32) {
        (serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}")), status)
    };
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere").display().to_string();
    let (told, status) = read(refused(&["stat", "--api", &nowhere, "-o", "json"]));
    assert_eq!((&told["type"], status), (&"urn:spillway:unreachable".into(), 3));
    let (told, status) = read(refused(&["stat", "--output=json", "--nonsense"]));
    assert_eq!((&told["type"], status), (&"urn:spillway:usage".into(), 2));

    // The daemon's own problem.
    let problem = r#"{"type":"urn:spillway:no-client","title":"Not Found","status":404,"detail":"there is no client 'x'"}"#;
    let (_dir, socket, daemon) =
        daemon_that_answers("404 Not Found", "application/problem+json", problem);
    let (told, status) = read(refused(&["client", "thaw", "x", "--api", &socket, "-o", "json"]));
    assert_eq!((&told["type"], &told["status"]), (&"urn:spillway:no-client".into(), &404.into()));
    assert_eq!((&told["detail"], status), (&"there is no client 'x'".into(), 2));
    daemon.join().unwrap();
}

#[test]
fn a_token_goes_to_another_host_only_inside_tls() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token").display().to_string();
    fs::write(&token, "0123456789abcdef").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (request, requests) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = request.send(read_request(&mut stream));
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]").unwrap();
        }
    });
    // The kernel connects the first to this host. Nothing tells the command so.
    let here = format!("http://0.0.0.0:{port}");
    for address in [&here, "http://192.0.2.1:8430", "http://[2001:db8::1]:8430"] {
        let asks = ["client", "list", "--api", address, "--token-file", &token];
        let (line, status) = refused(&asks);
        for words in [address, "the token is not sent", "https://", "ssh -N -L", "--api-guarded"] {
            assert!(line.contains(words), "{line}");
        }
        assert_eq!(status, 2);
        let (line, status) = refused(&[&asks[..], &["-o", "json"]].concat());
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&told["type"], status), (&"urn:spillway:usage".into(), 2));
        assert!(told["detail"].as_str().unwrap().contains("the token is not sent"), "{line}");
    }
    let problem = r#"{"type":"urn:spillway:no-client","title":"","status":404,"detail":"no"}"#;
    let (_dir, from, daemon) =
        daemon_that_answers("404 Not Found", "application/problem+json", problem);
    let (line, status) = refused(&[
        "client",
        "move",
        "bob",
        "--api",
        &from,
        "--to",
        &here,
        "--to-token-file",
        &token,
        "--api-guarded",
    ]);
    let words = ["the token is not sent", "--to DIR/api.sock", "--to-guarded"];
    assert!(words.iter().all(|words| line.contains(words)) && status == 2, "{line}");
    daemon.join().unwrap();
    assert!(requests.try_recv().is_err(), "nothing is sent");

    let (same, named) = (format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}"));
    let bears = ["--token-file", &token];
    for (address, arguments, has_token) in [
        (&same, &bears[..], true),
        (&named, &bears, true),
        (&here, &[], false),
        (&here, &["--token-file", &token, "--api-guarded"], true),
    ] {
        let output = spillway(&[&["client", "list", "--api", address][..], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let head = requests.recv().unwrap().to_ascii_lowercase();
        assert_eq!(head.contains("authorization: bearer 0123456789abcdef"), has_token, "{head}");
    }
}

/// What the body of a request has under `field`.
fn asked_for(request: &str, field: &str) -> serde_json::Value {
    let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
    serde_json::from_str::<serde_json::Value>(body).unwrap_or_else(|_| panic!("{request}"))[field]
        .clone()
}

#[test]
fn a_user_or_group_may_be_named() {
    let refusal = r#"{"type":"about:blank","title":"","status":409,"detail":"not today"}"#;
    for (option, name, field, number) in [
        ("--uid", "root", "uid", 0),
        ("--uid", "4711", "uid", 4711),
        ("--gid", "root", "gid", 0),
        ("--gid", "4712", "gid", 4712),
    ] {
        let (_dir, socket, daemon) =
            daemon_that_answers("409 Conflict", "application/problem+json", refusal);
        let (line, _) = refused(&["client", "add", "x", option, name, "--api", &socket]);
        assert!(line.contains("not today"), "{option} {name}: {line}");
        let request = daemon.join().unwrap();
        assert_eq!(asked_for(&request, "identity")[field], number, "{option} {name}: {request}");
    }
    for (option, kind) in [("--uid", "user"), ("--gid", "group")] {
        let (line, status) = refused(&["client", "add", "x", option, "no-such-name"]);
        assert!(
            line.contains(&format!("there is no {kind} 'no-such-name' on this host")),
            "{line}"
        );
        assert_eq!(status, 2);
    }
}

#[test]
fn pools_are_listed_with_the_uuids_of_devices_and_shared_pools() {
    let pools = r#"[
        {"number":7,"client":"b","lifetime":"persistent","uuid":null,"pages":3,"reserved_pages":256,
         "block":"swap-b","block_uuid":"6a0f9e4c-52c6-4a4e-9d0e-7f3c4f1b2a10"},
        {"number":8,"client":"b","lifetime":"ephemeral","uuid":"00000000-0000-0000-0000-00000000000e","pages":0,
         "reserved_pages":0,"block":null,"block_uuid":null}]"#;
    let (_dir, socket, daemon) = daemon_that_answers("200 OK", "application/json", pools);
    let output = spillway(&["pool", "list", "--api", &socket]);
    assert!(output.status.success(), "{output:?}");
    daemon.join().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<_>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0].last(), Some(&"uuid"), "{shown}");
    assert_eq!(lines[1].last(), Some(&"6a0f9e4c-52c6-4a4e-9d0e-7f3c4f1b2a10"), "{shown}");
    assert!(lines[2].contains(&"ephemeral,") && lines[2].contains(&"shared"), "{shown}");
    assert_eq!(lines[2].last(), Some(&"00000000-0000-0000-0000-00000000000e"), "{shown}");
}
