//! A ring's server polls for a client that soon sends again. The test has a process of its own, because it measures the
//! process's CPU time.

#[path = "local/agent.rs"]
mod agent;
#[path = "local/daemon.rs"]
#[allow(dead_code, reason = "it is for more tests than these")]
mod daemon;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use agent::Agent;
use daemon::{Daemon, LIMITS};
use rustix::time::{ClockId, clock_gettime};
use spillway_client::{Ring, Store as _};
use spillway_ring::Config;

const PAUSE: Duration = Duration::from_millis(3);

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of 50 requests, each after a pause.
fn cpu_time_of(ring: &Ring) -> Duration {
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

/// The server polls for at most `poll`, for a guest's window for at most `poll_window`.
fn config(poll: Duration, poll_window: Duration) -> Config {
    Config { poll, poll_window, pollers_max: 1, ..Config::default() }
}

fn of_a_connection(config: Config) -> Duration {
    let daemon = Daemon::with(LIMITS, config);
    cpu_time_of(&daemon.connect(1))
}

fn of_a_window(config: Config) -> Duration {
    let mut daemon = Daemon::with(LIMITS, config);
    let server = Arc::new(daemon.server.take().unwrap());
    let agent = Agent::start(&server);
    let ring = Ring::connect_from_guest(&agent.path, 1).unwrap();
    let time = cpu_time_of(&ring);
    drop(ring);
    agent.thread.join().unwrap();
    time
}

#[test]
fn the_server_polls_through_pauses_that_are_short_and_sleeps_in_longer_ones() {
    const LONG: Duration = Duration::from_secs(1);
    const SHORT: Duration = Duration::from_micros(200);
    const POLLED: Duration = Duration::from_millis(25);
    let (connections, windows) = (config(LONG, SHORT), config(SHORT, LONG));
    // It does not poll while other programs want its core, so one of many tries must do.
    let polls =
        |cpu_time: fn(Config) -> Duration, config| (0..200).any(|_| cpu_time(config) > POLLED);
    // What else it does takes time too, and more on a slow or busy machine.
    let sleeps =
        |cpu_time: fn(Config) -> Duration, config| (0..10).any(|_| cpu_time(config) < POLLED);
    assert!(polls(of_a_connection, connections), "a connection's thread slept");
    assert!(sleeps(of_a_connection, windows), "a connection's thread polled");
    assert!(polls(of_a_window, windows), "a window's thread slept");
    assert!(sleeps(of_a_window, connections), "a window's thread polled");
}
