//! What the command says when it can't do what is wanted, and of which build it is.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::thread;

fn spillway(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    command.args(arguments).env_remove("SPILLWAY_API").output().unwrap()
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
    let (line, status) = refused(&["stat", "--api", "https://blade:8430"]);
    assert!(
        line.starts_with("spillway: --api https://blade:8430: https:// does not work"),
        "{line}"
    );
    assert!(line.contains("http://HOST:PORT") && status == 2, "{line}");
    // The environment's too.
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    let output = command.arg("stat").env("SPILLWAY_API", "https://blade:8430").output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("SPILLWAY_API https://blade:8430: https:// does not work"), "{line}");
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
    let socket = dir.path().join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).unwrap() > 0);
        let body = r#"{"type":"urn:spillway:no-client","title":"Not Found","status":404,"detail":"there is no client 'x'"}"#;
        let length = body.len();
        let head = "HTTP/1.1 404 Not Found\r\nContent-Type: application/problem+json\r\n";
        write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").unwrap();
    });
    let socket = socket.display().to_string();
    let (told, status) = read(refused(&["client", "thaw", "x", "--api", &socket, "-o", "json"]));
    assert_eq!((&told["type"], &told["status"]), (&"urn:spillway:no-client".into(), &404.into()));
    assert_eq!((&told["detail"], status), (&"there is no client 'x'".into(), 2));
    daemon.join().unwrap();
}
