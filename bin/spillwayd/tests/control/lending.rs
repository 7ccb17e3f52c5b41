//! A host that swaps onto borrowed memory: its helper, and its locked memory.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use spillway_test_support::wait::until;

use crate::daemon::answer;
use crate::renew::Host;

const LEND: &str = "[lend]\nroles = \"borrow\"\nlisten = \"127.0.0.1:0\"\n\
                    [[peer]]\nname = \"b.example\"\naddress = \"127.0.0.1:1\"\n";

/// The child of a process that has this name.
fn child(parent: &str, name: &str) -> Option<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let its = processes.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let is_it = |status: &String| {
        status.starts_with(&format!("Name:\t{name}\n"))
            && status.contains(&format!("\nPPid:\t{parent}\n"))
    };
    let status = its.into_iter().find(is_it)?;
    let (_, rest) = status.split_once("\nPid:\t")?;
    rest.lines().next()?.parse().ok()
}

#[test]
fn the_end_of_the_helper_is_told_and_nothing_is_borrowed_then() {
    let host = Host::new();
    host.renew(1, "a.example");
    let daemon = host.start(LEND);
    daemon.line(&[" ready "]);
    let ask = |request: &str, body: &str| {
        answer(UnixStream::connect(host.path("run/api.sock")).unwrap(), request, "", body)
    };
    let version = ask("GET /v1/version", "");
    let (_, rest) = version.split_once("\"pid\":").unwrap();
    let pid = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    assert!(ask("GET /v1/lending", "").contains("\"helper\":\"ok\""));
    assert!(ask("GET /metrics", "").contains("\nspillway_lend_helper_up 1\n"));

    let helper = child(pid, "spillway-helper").unwrap();
    kill_process(Pid::from_raw(helper).unwrap(), Signal::KILL).unwrap();
    daemon
        .line(&["ERROR", "the helper has ended: this host can't swap onto or off borrowed memory"]);
    assert!(ask("GET /v1/lending", "").contains("\"helper\":\"gone\""));
    assert!(ask("GET /metrics", "").contains("\nspillway_lend_helper_up 0\n"));
    until("the refusal", || {
        let refused = ask("POST /v1/lending/borrow", "{\"bytes\":67108864}");
        refused.contains("the helper is gone; restart the daemon")
    });
}

#[test]
fn a_borrower_whose_memory_cannot_be_locked_does_not_start() {
    let host = Host::new();
    host.renew(1, "a.example");
    let config = host.configure(LEND);
    let mut command = Command::new("prlimit");
    command.arg("--memlock=65536:65536");
    if geteuid().is_root() {
        command.args(["setpriv", "--bounding-set=-ipc_lock,-sys_resource"]);
    }
    command.args([env!("CARGO_BIN_EXE_spillwayd"), "--config"]).arg(config);
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    let line = "lend.roles: a borrower must not wait for its own pages: can't lock memory";
    assert!(said.contains(line) && said.contains("or only lend (lend.roles = \"lend\")"), "{said}");
}
