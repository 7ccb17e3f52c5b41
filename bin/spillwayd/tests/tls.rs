//! docs/daemon.md, "Programs of other hosts, inside TLS", as it is written, with another address.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use spillway_client::{Error, Get, Key, PoolSpec, Put, Store};
use spillway_test_support::wait::until_some;

/// The daemon, ended with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let raw = rustix::process::Pid::from_raw(self.0.id().cast_signed()).unwrap();
        let _ = rustix::process::kill_process(raw, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// The part of the document, about this host.
fn document(dir: &Path, port: u16) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/daemon.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, part) = text.split_once("## Programs of other hosts, inside TLS").unwrap();
    let (part, _) = part.split_once("\n## ").unwrap();
    part.replace("192.0.2.1:4421", &format!("127.0.0.1:{port}"))
        .replace("192.0.2.1", "127.0.0.1")
        .replace("/etc/spillway", &dir.display().to_string())
}

/// What stands between ```` ```kind ```` and the end of that block.
fn block<'a>(part: &'a str, kind: &str) -> &'a str {
    let (_, rest) = part.split_once(&format!("```{kind}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

fn open(dir: &Path, url: &str) -> Result<Box<dyn Store>, Error> {
    // The document's program runs beside its files.
    let url = ["certificate=", "key=", "authority="].iter().fold(url.to_owned(), |url, option| {
        url.replace(option, &format!("{option}{}/", dir.display()))
    });
    spillway_client::open(&url)
}

#[test]
fn the_documents_hosts_meet_inside_tls() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let part = document(dir, port);
    let made = Command::new("sh").arg("-ec").arg(block(&part, "sh")).current_dir(dir).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let config = dir.join("spillwayd.toml");
    let listen = format!("[listen]\ndir = \"{}\"\n", dir.join("run").display());
    let text = block(&part, "toml").replacen("[listen]\n", &listen, 1);
    let text: Vec<_> = text.lines().map(str::trim).collect();
    fs::write(&config, text.join("\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillwayd"));
    command.arg("--config").arg(&config).args(["--set", "store.capacity=64M"]);
    let _daemon = Daemon(command.stdin(Stdio::null()).spawn().unwrap());

    let (_, url) = part.split_once("opens `").unwrap();
    let (url, _) = url.split_once('`').unwrap();
    let store = until_some("a daemon", || open(dir, url).ok());
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    assert_eq!(store.put(pool, Key::new(1, 2), &[5; 4096]).unwrap(), Put::Stored);
    let mut read = [0; 4096];
    assert_eq!(store.get(pool, Key::new(1, 2), &mut read).unwrap(), Get::Hit(4096));
    assert_eq!(read, [5; 4096]);

    // The blade's certificate is good, but names no client.
    let other = url.replace("b.pem", "blade.pem").replace("b.key", "blade.key");
    let error = open(dir, &other).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("the store can't be reached"), "{error}");
}

#[test]
fn an_address_without_certificates_is_refused() {
    let checked = Command::new(env!("CARGO_BIN_EXE_spillwayd"))
        .args(["--check", "--set", "listen.nvme_tls=127.0.0.1:4421"])
        .output()
        .unwrap();
    let line = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(!checked.status.success() && line.contains("needs tls_certificate"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
}
