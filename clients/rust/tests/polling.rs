//! A ring's server polls for a client that soon sends again. The test has a process of its own, because it measures the
//! process's CPU time.

#[path = "local/daemon.rs"]
#[allow(dead_code, reason = "it is for more tests than these")]
mod daemon;

use std::thread;
use std::time::Duration;

use daemon::{Daemon, LIMITS};
use rustix::time::{ClockId, clock_gettime};
use spillway_client::Store as _;
use spillway_ring::Config;

const PAUSE: Duration = Duration::from_millis(3);

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of 50 requests, each after a pause, when the server polls for at most this long.
fn cpu_time_with(poll: Duration) -> Duration {
    let daemon = Daemon::with(LIMITS, Config { poll, pollers_max: 1, ..Config::default() });
    let ring = daemon.connect(1);
    let ask = |times: u32| {
        for _ in 0..times {
            thread::sleep(PAUSE);
            ring.statistics().unwrap();
        }
    };
    // During these requests the polling time doubles until it exceeds a pause.
    ask(20);
    let before = cpu_time();
    ask(50);
    cpu_time() - before
}

#[test]
fn the_server_polls_through_pauses_that_are_short_and_sleeps_in_longer_ones() {
    // It does not poll while other programs want its core, so one of ten tries must do.
    let polls = |_| cpu_time_with(Duration::from_secs(1)) > Duration::from_millis(25);
    assert!((0..10).any(polls), "it slept");
    assert!(cpu_time_with(Duration::from_micros(200)) < Duration::from_millis(25), "it polled");
}
