//! What a service manager hears of a reload.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use spillway_test_support::wait::PATIENCE;

use crate::daemon::Daemon;

/// The states up to the next READY=1.
fn states(socket: &UnixDatagram) -> Vec<String> {
    let mut states = Vec::new();
    let mut message = [0; 4096];
    while states.last().is_none_or(|last| last != "READY=1") {
        let length = socket.recv(&mut message).expect("a state");
        let text = String::from_utf8_lossy(&message[..length]);
        states.extend(text.lines().map(str::to_owned));
    }
    states
}

#[test]
fn a_reload_ends_for_the_service_manager_whether_it_fails_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let notified = dir.path().join("notify");
    let socket = UnixDatagram::bind(&notified).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = dir.path().join("spillwayd.toml");
    let text = format!(
        "[listen]\ndir = \"{}\"\n[store]\ncapacity = \"64M\"\n",
        dir.path().join("run").display()
    );
    fs::write(&config, &text).unwrap();
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let daemon = Daemon::start_notifying(dir.path(), &arguments, &notified);
    states(&socket);
    for (text, outcome) in [("nonsense", "not reloaded"), (text.as_str(), "configuration reloaded")]
    {
        fs::write(&config, text).unwrap();
        assert!(daemon.reload().contains(outcome), "{}", daemon.lines());
        let states = states(&socket);
        assert!(states.iter().any(|state| state == "RELOADING=1"), "{states:?}");
    }
}

#[test]
fn a_service_manager_at_an_abstract_socket_is_told_from_inside_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("spillway-notify-{}", std::process::id());
    let socket = SocketAddr::from_abstract_name(&name).and_then(|it| UnixDatagram::bind_addr(&it));
    let socket = socket.unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let settings = [
        format!("listen.dir={}", dir.path().join("run").display()),
        "store.capacity=64M".to_owned(),
    ];
    let arguments: Vec<_> = settings.into_iter().flat_map(|it| ["--set".to_owned(), it]).collect();
    let notified = format!("@{name}");
    let daemon = Daemon::start_notifying(dir.path(), &arguments, Path::new(&notified));
    states(&socket);
    assert!(!daemon.lines().contains("can't notify"), "{}", daemon.lines());
}

#[test]
fn a_sharing_domain_that_changes_is_not_taken_and_the_log_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("spillwayd.toml");
    let set = |domain: u32| {
        let text = format!(
            "[listen]\ndir = \"{}\"\n[store]\ncapacity = \"64M\"\n[[client]]\nname = \"alice\"\nuid = 12345\n\
             domain = {domain}\n",
            dir.path().join("run").display()
        );
        fs::write(&config, text).unwrap();
    };
    set(7);
    let daemon =
        Daemon::start_with(dir.path(), &["--config".to_owned(), config.display().to_string()]);
    daemon.line(&[" ready "]);
    let told =
        |lines: &str| lines.contains("sharing domain can't change") && lines.contains("alice");
    assert!(!told(&daemon.reload()), "{}", daemon.lines());
    set(8);
    assert!(told(&daemon.reload()), "{}", daemon.lines());
}
