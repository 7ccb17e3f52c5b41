//! After a flood the thread that accepts connections sleeps again. The test has a process of its own, because it looks at
//! this thread by its name.

#[path = "local/daemon.rs"]
#[allow(dead_code, reason = "it is for more tests than these")]
mod daemon;

use std::fs;
use std::thread;
use std::time::Duration;

use daemon::{Daemon, LIMITS};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use spillway_client::Store as _;
use spillway_ring::Config;

/// How often the thread has gone to sleep.
fn sleeps() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let mut statuses =
        threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).ok());
    let status = statuses.find(|status| status.starts_with("Name:\tring-accept\n")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn after_a_flood_the_accepting_thread_sleeps() {
    let daemon = Daemon::with(LIMITS, Config { connections_of_user_max: 2, ..Config::default() });
    let address = SocketAddrUnix::new(&daemon.path).unwrap();
    let flood: Vec<_> = (0..40)
        .map(|_| {
            let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            connect(&socket, &address).unwrap();
            socket
        })
        .collect();
    let counts = daemon.server.as_ref().unwrap().counts().clone();
    spillway_test_support::wait::until("the flood to be refused", || {
        counts.refused(spillway_serving::Refusal::Peer) >= 38
    });
    drop(flood);
    thread::sleep(Duration::from_millis(100));
    let before = sleeps();
    thread::sleep(Duration::from_secs(1));
    let woken = sleeps() - before;
    assert!(woken < 100, "it was woken {woken} times in a second of rest");
    assert!(daemon.connect(1).statistics().is_ok(), "and accepts");
}
