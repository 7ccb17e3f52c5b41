//! A ring's server polls for a client that comes again soon. Alone in its process, whose processor time it looks at.

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

/// Processor time of 50 requests, each after a pause, when the server polls for so long at most.
fn cpu_time_with(poll: Duration) -> Duration {
    let daemon = Daemon::with(LIMITS, Config { poll, pollers_max: 1, ..Config::default() });
    let ring = daemon.connect(1);
    let ask = |times: u32| {
        for _ in 0..times {
            thread::sleep(PAUSE);
            ring.statistics().unwrap();
        }
    };
    // In these the time of polling doubles until it is longer than a pause.
    ask(20);
    let before = cpu_time();
    ask(50);
    cpu_time() - before
}

#[test]
fn the_server_polls_through_pauses_that_are_short_and_sleeps_in_longer_ones() {
    assert!(cpu_time_with(Duration::from_secs(1)) > Duration::from_millis(25), "it slept");
    assert!(cpu_time_with(Duration::from_micros(200)) < Duration::from_millis(25), "it polled");
}
