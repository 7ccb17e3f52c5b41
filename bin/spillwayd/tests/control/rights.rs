//! The rights that a daemon keeps while it runs, whoever starts it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;

use crate::daemon::{Daemon, answer};

/// As /proc shows an empty set.
const NO_CAPABILITIES: &str = "0000000000000000";
/// A user and group without rights.
const NOBODY: u32 = 65534;

#[test]
fn capabilities_are_dropped_and_files_that_are_out_of_reach_then_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    fs::write(file("password"), "secret").unwrap();
    fs::set_permissions(file("password"), Permissions::from_mode(0o400)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(file("password"), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let text = "[store]\ncapacity = \"64M\"\n[listen]\ndir = \"DIR/run\"\n\
                [[client]]\nname = \"b\"\npassword_file = \"DIR/password\"\n";
    let text = text.replace("DIR", &dir.path().display().to_string());
    fs::write(file("spillwayd.toml"), text).unwrap();
    let config = file("spillwayd.toml").display().to_string();
    let daemon = Daemon::start_with(dir.path(), &["--config".to_owned(), config]);
    let ready = daemon.line(&[" ready "]);

    let api = UnixStream::connect(file("run/api.sock")).unwrap();
    let version = answer(api, "GET /v1/version", "", "");
    let (_, rest) = version.split_once("\"pid\":").unwrap();
    let pid = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    // Memory stays locked beyond a limit that the daemon may not raise, as in some containers.
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let is_limited =
        !limits.lines().any(|it| it.starts_with("Max locked memory") && it.contains("unlimited"));
    let (kept, mask) = match is_root && is_limited && ready.contains("memory_locked=true") {
        true => ("cap_ipc_lock", "0000000000004000"),
        false => ("none", NO_CAPABILITIES),
    };
    let user = rustix::process::geteuid();
    assert!(ready.contains(&format!("user={user} capabilities=\"{kept}\"")), "{ready}");
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for (set, mask) in [
            ("CapPrm", mask),
            ("CapEff", mask),
            ("CapInh", NO_CAPABILITIES),
            ("CapAmb", NO_CAPABILITIES),
        ] {
            assert!(status.contains(&format!("{set}:\t{mask}\n")), "{set}: {status}");
        }
    }

    if is_root {
        daemon.line(&["WARN", "/password can't be read again"]);
        let lines = daemon.reload_process(pid.parse().unwrap());
        assert!(lines.contains("not reloaded") && lines.contains("/password"), "{lines}");
        chown(file("password"), Some(0), Some(0)).unwrap();
    } else {
        assert!(!daemon.lines().contains("can't be read again"), "{}", daemon.lines());
    }
    let lines = daemon.reload_process(pid.parse().unwrap());
    assert!(lines.contains("configuration reloaded"), "{lines}");
}
