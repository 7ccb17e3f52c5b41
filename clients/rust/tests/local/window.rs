//! Windows for programs of guests: the work of an agent and a daemon on a guest's memory, with a memfd instead.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_client::{Error, Get, Key, PoolSpec, Put, Ring, Store};
use spillway_ring::{Attached, Config, Region, Server};
use spillway_serving::Refusal;
use spillway_types::Limits;
use spillway_wire::ring::{Hello, Reason, WAKE, WINDOW_PAGE_BYTES};

use crate::agent::Agent;
use crate::daemon::{Daemon, LIMITS};

const PAGE: u64 = WINDOW_PAGE_BYTES as u64;

fn server() -> (Daemon, Arc<Server>) {
    server_with(LIMITS)
}

fn server_with(limits: Limits) -> (Daemon, Arc<Server>) {
    let mut daemon = Daemon::for_one(limits);
    let server = Arc::new(daemon.server.take().unwrap());
    (daemon, server)
}

#[test]
fn values_of_all_lengths_go_through_a_window_and_its_end_is_seen() {
    let (daemon, server) = server();
    let agent = Agent::start(&server);
    let store = Ring::connect_from_guest(&agent.path, 2).unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    for (index, bytes) in [1, 4095, 4096, 4097, 3 << 20].into_iter().enumerate() {
        let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + index) as u8).collect();
        let key = Key::new(1, index as u32);
        // Sometimes long enough for both sides to sleep.
        thread::sleep(Duration::from_millis(index as u64 % 2 * 5));
        assert_eq!(store.put(pool, key, &value).unwrap(), Put::Stored);
        let mut read = vec![0; bytes];
        assert_eq!(store.get(pool, key, &mut read).unwrap(), Get::Hit(bytes));
        assert_eq!(read, value);
    }
    let long = vec![0; 5 << 20];
    assert!(matches!(store.put(pool, Key::new(2, 0), &long), Err(Error::Length { .. })));
    drop(store);
    let attached = agent.thread.join().unwrap().unwrap();
    assert!(!attached.is_broken());
    assert_eq!(daemon.inside(), 0);
}

/// Serves a window of one page, with a memfd for the guest's memory.
fn attach(server: &Server, hello: Hello) -> Result<Attached, Reason> {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, PAGE).unwrap();
    server.attach("guest", hello, |geometry| Region::map_guest(&memory, &[0], geometry))
}

/// Ends a window, and waits until all of it is gone.
fn end(attached: &Attached) {
    attached.end();
    let mut byte = [0; 1];
    while matches!(recv(&attached.socket, &mut byte, RecvFlags::empty()), Ok((_, 1))) {}
}

#[test]
fn a_program_whose_ring_breaks_the_protocol_loses_its_window() {
    let (_daemon, server) = server();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, PAGE).unwrap();
    let map = |geometry| Region::map_guest(&memory, &[0], geometry);
    let attached = server.attach("guest", hello, map).unwrap();
    rustix::io::pwrite(&memory, &1000_u32.to_le_bytes(), 0).unwrap();
    send(&attached.socket, &[WAKE], SendFlags::NOSIGNAL).unwrap();
    let mut byte = [0; 1];
    while matches!(recv(&attached.socket, &mut byte, RecvFlags::empty()), Ok((_, 1))) {}
    assert!(attached.is_broken());
}

#[test]
fn a_window_that_is_kept_busy_ends_all_the_same() {
    let (daemon, server) = server();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, PAGE).unwrap();
    let map = |geometry| Region::map_guest(&memory, &[0], geometry);
    let attached = server.attach("guest", hello, map).unwrap();
    let guest = Region::map_window(&memory, 0, attached.geometry).unwrap();
    let busy = thread::spawn(move || {
        // Commands of zeros, as fast as the server takes them. It answers them with an error.
        for count in 1..u32::MAX {
            guest.submitted().store(count, std::sync::atomic::Ordering::SeqCst);
            let start = std::time::Instant::now();
            while guest.completion(count - 1).is_none() {
                if start.elapsed() > Duration::from_millis(500) {
                    return;
                }
                if guest.server_asleep().load(std::sync::atomic::Ordering::SeqCst) != 0 {
                    thread::yield_now();
                }
            }
        }
    });
    thread::sleep(Duration::from_millis(20));
    end(&attached);
    assert_eq!(daemon.inside(), 0);
    busy.join().unwrap();
}

#[test]
fn a_window_for_which_there_is_no_memory_is_refused() {
    let (daemon, server) = server();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let none = |_| Err(std::io::ErrorKind::InvalidInput.into());
    assert_eq!(server.attach("guest", hello, none).unwrap_err(), Reason::Failed);
    assert_eq!(daemon.inside(), 0);
    assert_eq!(server.connections(), 0);
    let hello = Hello { version: 7, ..hello };
    assert_eq!(server.attach("guest", hello, none).unwrap_err(), Reason::Version);
}

#[test]
fn a_window_beyond_the_ring_s_connections_is_refused_and_counted() {
    let mut daemon = Daemon::with(LIMITS, Config::of(1));
    let server = daemon.server.take().unwrap();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let first = attach(&server, hello).unwrap();
    let counts = || (server.counts().open(), server.counts().refused(Refusal::Full));
    assert_eq!(counts(), (1, 0));
    assert_eq!(attach(&server, hello).unwrap_err(), Reason::Connections);
    assert_eq!(counts(), (1, 1));
    end(&first);
    assert_eq!(daemon.inside(), 0);
}

#[test]
fn windows_that_failed_leave_the_client_its_limits() {
    // Enough for one ring.
    let limits = Limits { operations_max: 64, bytes_max: 4096, ..LIMITS };
    let (_daemon, server) = server_with(limits);
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let none = |_| Err(std::io::ErrorKind::InvalidInput.into());
    for _ in 0..3 {
        assert_eq!(server.attach("guest", hello, none).unwrap_err(), Reason::Failed);
    }
    let attached = attach(&server, hello).unwrap();
    assert_eq!((attached.geometry.depth(), attached.geometry.data_bytes()), (64, 4096));
    assert_eq!(attach(&server, hello).unwrap_err(), Reason::Limits);
    end(&attached);
}

#[test]
fn rings_that_come_and_go_leave_the_client_its_limits() {
    let (_daemon, server) = server_with(Limits { bytes_max: 32 << 10, ..LIMITS });
    // Not a whole number of pages.
    let hello = Hello { version: 1, depth: 8, data_bytes: 10_000 };
    let stays = attach(&server, hello).unwrap();
    assert_eq!(stays.geometry.data_bytes(), 8192);
    for _ in 0..10 {
        let attached = attach(&server, hello).unwrap();
        assert_eq!(attached.geometry, stays.geometry);
        end(&attached);
    }
    let rest = attach(&server, Hello { data_bytes: 32 << 10, ..hello }).unwrap();
    assert_eq!(rest.geometry.data_bytes(), 24 << 10);
    [stays, rest].iter().for_each(end);
}
