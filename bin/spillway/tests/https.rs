//! The commands at a daemon inside TLS, and what they say when there is none.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::StreamOwned;
use spillway_test_support::certificates::{Authority, Signed};
use spillway_tls::{Files, ServerSettings, Versions};

/// A daemon that has no clients.
struct Daemon {
    port: u16,
    /// The heads of the requests that have come.
    asked: Arc<Mutex<String>>,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start(signed: &Signed) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name)
        };
        let (certificate, key) = (write("cert", signed.pem()), write("key", signed.key_pem()));
        write("token", "0123456789abcdef".to_owned());
        let files = Files { certificate, key, authority: None };
        let settings = ServerSettings::load(&files, Versions::Tls12And13).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<Mutex<String>>::default();
        let heard = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = StreamOwned::new(settings.connection().unwrap(), stream.unwrap());
                let (mut head, mut part) = (String::new(), [0; 4096]);
                // A client that trusts nobody leaves in the handshake.
                while !head.ends_with("\r\n\r\n")
                    && let Ok(length @ 1..) = stream.read(&mut part)
                {
                    head.push_str(std::str::from_utf8(&part[..length]).unwrap());
                }
                heard.lock().unwrap().push_str(&head);
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Self { port, asked, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// `spillway client list` at an address.
fn list(address: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    command.args(["client", "list", "-o", "json", "--api", address]).args(arguments);
    command.env_remove("SPILLWAY_API_CA").env_remove("SSL_CERT_FILE");
    command.envs(environment.iter().copied()).output().unwrap()
}

#[test]
fn a_daemon_inside_tls_is_asked() {
    let authority = Authority::new();
    let daemon = Daemon::start(&authority.sign(&["localhost", "127.0.0.1"]));
    let ca = authority.path().to_str().unwrap();
    let token = daemon.path("token").display().to_string();
    for host in ["localhost", "127.0.0.1"] {
        let address = format!("https://{host}:{}", daemon.port);
        for (arguments, environment) in [
            (&["--api-ca", ca][..], &[][..]),
            (&["--api-ca", ca], &[("SPILLWAY_API_CA", "/no/such/file")]),
            (&[], &[("SPILLWAY_API_CA", ca)]),
            // The system's authorities.
            (&[], &[("SSL_CERT_FILE", ca)]),
        ] {
            let arguments = [arguments, &["--token-file", &token]].concat();
            let output = list(&address, &arguments, environment);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && output.stdout.starts_with(b"[]"), "{told}");
            let head = std::mem::take(&mut *daemon.asked.lock().unwrap());
            let head = head.to_ascii_lowercase();
            assert!(head.contains("authorization: bearer 0123456789abcdef\r\n"), "{head}");
            assert!(head.contains(&format!("host: {host}:{}\r\n", daemon.port)), "{head}");
        }
    }
}

/// Tries an address; the one line of the error.
fn refused(address: &str, ca: &str) -> String {
    let output = list(address, &["--api-ca", ca], &[]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.lines().count() == 1 && line.contains(address), "{line}");
    line
}

#[test]
fn each_reason_why_there_is_no_tls_is_a_line_of_its_own() {
    let (authority, other) = (Authority::new(), Authority::new());
    let names = ["localhost"];
    let [good, expired] =
        [authority.sign(&names), authority.sign_expired(&names)].map(|it| Daemon::start(&it));
    let (ours, theirs) = (authority.path().to_str().unwrap(), other.path().to_str().unwrap());
    let at = |host: &str, daemon: &Daemon| format!("https://{host}:{}", daemon.port);
    for (address, ca, words) in [
        (at("localhost", &good), theirs, "no authority in"),
        (at("127.0.0.1", &good), ours, "its certificate is for another name"),
        (at("localhost", &expired), ours, "its certificate has expired"),
    ] {
        let line = refused(&address, ca);
        assert!(line.contains(words) && line.contains("unreachable"), "{line}");
    }
    assert_eq!(*good.asked.lock().unwrap(), "", "nothing is sent to whom nobody trusts");

    // The authorities of this host do not know a test's.
    let output = list(&at("localhost", &good), &[], &[("SSL_CERT_FILE", theirs)]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("--api-ca") && output.status.code() == Some(3), "{line}");
    for (ca, words) in [("/nowhere", "/nowhere"), ("/dev/null", "no certificate in it")] {
        let line = refused(&at("localhost", &good), ca);
        assert!(line.contains(words) && line.contains("spillway:usage"), "{line}");
    }
}

#[test]
fn a_port_without_tls_is_told() {
    for (answer, words) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
            "does not speak TLS: use http://",
        ),
        (b"", "closed the connection before TLS"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; 64];
            stream.read_exact(&mut hello).unwrap();
            stream.write_all(answer).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // Until the client leaves.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let line = refused(&address, Authority::new().path().to_str().unwrap());
        assert!(line.contains(words), "{line}");
        server.join().unwrap();
    }
}

#[test]
fn an_address_has_a_host_and_no_path() {
    for bad in ["https://", "https:///x", "https://host/x", "https://me@host", "https://host:none"]
    {
        let output = list(bad, &[], &[]);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.contains(bad) && line.contains("https://HOST:PORT"), "{line}");
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
}
