//! Sleeping and waking, and how rings end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::daemon::{Daemon, LIMITS};
use spillway_client::{Error, Get, Key, PoolSpec, Put, Ring, RingOptions, Store};
use spillway_ring::Config;
use spillway_test_support::wait::until_equal;

#[test]
fn nobody_there_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nobody.sock");
    let error = Ring::connect(&path).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }));
    assert!(error.to_string().contains("nobody.sock"), "{error}");
    // A listener that is not a daemon.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(Ring::connect(&path), Err(Error::Connect { .. })));
}

#[test]
fn signals_do_not_end_an_attempt_to_connect() {
    extern "C" fn ignore(_: libc::c_int) {}
    let daemon = Daemon::for_one(LIMITS);
    // SAFETY: the handler does nothing, and no other test uses the signal.
    unsafe { libc::signal(libc::SIGUSR1, ignore as *const () as libc::sighandler_t) };
    // SAFETY: always succeeds.
    let connecting = unsafe { libc::pthread_self() };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the thread lives until `done` is set and this one has ended.
                unsafe { libc::pthread_kill(connecting, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        let failed = (0..200).find_map(|_| Ring::connect(&daemon.path).err());
        done.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
fn both_sides_sleep_and_wake() {
    let daemon = Daemon::for_one(LIMITS);
    // This client sleeps at once.
    let options = RingOptions { poll: Duration::ZERO, ..RingOptions::default() };
    let ring = Ring::connect_with(&daemon.path, options).unwrap();
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    let mut value = [0; 4096];
    for index in 0..200 {
        if index % 10 == 0 {
            // Sleep for longer than the server polls.
            std::thread::sleep(Duration::from_millis(2));
        }
        let key = Key::new(1, index);
        assert_eq!(ring.put(pool, key, &[index as u8; 4096]).unwrap(), Put::Stored);
        assert_eq!(ring.get(pool, key, &mut value).unwrap(), Get::Hit(4096));
        assert_eq!(value, [index as u8; 4096]);
    }
}

/// CPU time that a thread of this process has used, by the name of the thread.
fn cpu_ticks(thread: &str) -> u64 {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        let (name, rest) = stat.rsplit_once(") ").unwrap();
        if name.split_once('(').is_some_and(|(_, name)| name.starts_with(thread)) {
            let fields: Vec<&str> = rest.split(' ').collect();
            ticks += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    ticks
}

#[test]
fn an_idle_ring_takes_no_cpu_time() {
    let daemon = Daemon::for_one(LIMITS);
    let ring = daemon.connect(1);
    ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    // Other tests of this process have rings too. So look for an interval in which their threads are idle as well.
    let quiet = (0..200).any(|_| {
        let before = cpu_ticks("ring-");
        std::thread::sleep(Duration::from_millis(300));
        cpu_ticks("ring-").saturating_sub(before) <= 1
    });
    assert!(quiet);
}

#[test]
fn a_server_that_ends_is_noticed_by_clients_that_wait_and_by_those_that_come() {
    let mut daemon = Daemon::for_one(LIMITS);
    let ring = daemon.connect(1);
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    let server = daemon.server.take();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            loop {
                if let Err(error) = ring.put(pool, Key::new(1, 1), &[1; 4096]) {
                    return error;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        drop(server);
        let error = busy.join().unwrap();
        assert!(matches!(error, Error::Lost), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
    });
    assert!(matches!(ring.statistics(), Err(Error::Lost)));
    let mut outcomes = Vec::new();
    let operation = spillway_client::Operation::Exists { pool, key: Key::new(1, 1) };
    ring.batch(&mut [operation], &mut outcomes);
    assert!(matches!(outcomes[..], [Err(Error::Lost)]));
    // No deadline is what it failed of.
    let operation = spillway_client::Operation::Exists { pool, key: Key::new(1, 1) };
    let far = Instant::now() + Duration::from_secs(3600);
    assert!(ring.batch_until(&mut [operation], &mut outcomes, far));
    assert!(matches!(outcomes[..], [Err(Error::Lost)]));
    assert_eq!(daemon.inside(), 0);
}

#[test]
fn all_threads_that_wait_for_the_one_connection_notice_its_end() {
    const THREADS: usize = 8;
    let mut daemon = Daemon::for_one(LIMITS);
    let ring = Arc::new(daemon.connect(1));
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    let (sender, receiver) = mpsc::channel();
    for _ in 0..THREADS {
        let (ring, sender) = (ring.clone(), sender.clone());
        std::thread::spawn(move || {
            while ring.put(pool, Key::new(1, 1), &[1; 4096]).is_ok() {}
            sender.send(())
        });
    }
    std::thread::sleep(Duration::from_millis(50));
    drop(daemon.server.take());
    let noticed = || receiver.recv_timeout(Duration::from_secs(10)).is_ok();
    assert_eq!((0..THREADS).take_while(|_| noticed()).count(), THREADS);
}

#[test]
fn no_call_is_carried_out_by_another_daemon_that_listens_there_by_now() {
    let (daemon, other) = (Daemon::for_one(LIMITS), Daemon::for_one(LIMITS));
    let (ring, witness) = (daemon.connect(2), other.connect(1));
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    assert_eq!(witness.open_pool(PoolSpec::PERSISTENT).unwrap(), pool);
    std::fs::rename(&other.path, &daemon.path).unwrap();
    // One of two concurrent calls finds the connection in use, and opens another.
    let put_until_lost = || {
        loop {
            match ring.put(pool, Key::new(1, 1), &[1; 4096]) {
                Err(Error::Lost) => return,
                put => assert_eq!(put.unwrap(), Put::Stored),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(put_until_lost);
        scope.spawn(put_until_lost);
    });
    assert_eq!(witness.pools().unwrap()[0].pages, 0);
}

#[test]
fn what_a_client_leaves_is_there_for_the_next_connection() {
    let daemon = Daemon::for_one(LIMITS);
    let first = daemon.connect(1);
    let pool = first.open_pool(PoolSpec::PERSISTENT).unwrap();
    assert_eq!(first.put(pool, Key::new(1, 1), b"kept").unwrap(), Put::Stored);
    let identity = first.pools().unwrap()[0].identity;
    drop(first);
    let second = daemon.connect(1);
    let pools = second.pools().unwrap();
    assert_eq!((pools.len(), pools[0].identity), (1, identity));
    let mut value = [0; 8];
    assert_eq!(second.get(pools[0].pool, Key::new(1, 1), &mut value).unwrap(), Get::Hit(4));
    assert_eq!(&value[..4], b"kept");
}

#[test]
fn a_forks_child_is_told_and_the_parent_goes_on() {
    let daemon = Daemon::for_one(LIMITS);
    let ring = daemon.connect(1);
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    assert_eq!(ring.put(pool, Key::new(1, 1), b"x").unwrap(), Put::Stored);
    // SAFETY: the child only reads its own memory, and exits without running anything else.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let forked = matches!(ring.exists(pool, Key::new(1, 1)), Err(Error::Forked));
            libc::_exit(if forked { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(status, 0);
    assert!(ring.exists(pool, Key::new(1, 1)).unwrap());
}

/// Longer than a busy machine keeps a test from binding a pool again.
const GRACE: Duration = Duration::from_secs(2);
/// After this a pool that nobody has bound is gone.
const LATER: Duration = Duration::from_millis(3200);

#[test]
fn a_bound_pool_goes_with_the_last_connection_that_bound_it() {
    let config = Config { bound_grace: GRACE, ..Config::default() };
    let daemon = Daemon::with(LIMITS, config);
    let witness = daemon.connect(1);
    let (first, second) = (daemon.connect(1), daemon.connect(1));
    let (bound, free) = (
        first.open_pool(PoolSpec::PERSISTENT).unwrap(),
        first.open_pool(PoolSpec::PERSISTENT).unwrap(),
    );
    first.bind_pool(bound).unwrap();
    second.bind_pool(bound).unwrap();
    assert_eq!(witness.put(bound, Key::new(1, 1), &[1; 4096]).unwrap(), Put::Stored);
    drop(first);
    // The second connection still holds the pool.
    std::thread::sleep(LATER);
    assert!(witness.exists(bound, Key::new(1, 1)).unwrap());
    drop(second);
    // A connection that binds the pool in time keeps it.
    let third = daemon.connect(1);
    third.bind_pool(bound).unwrap();
    std::thread::sleep(LATER);
    assert!(witness.exists(bound, Key::new(1, 1)).unwrap());
    drop(third);
    until_equal("pools", 1, || witness.pools().unwrap().len());
    assert_eq!(witness.pools().unwrap()[0].pool, free);
}

#[test]
fn a_pool_that_a_connection_bound_twice_goes_with_it() {
    let config = Config { bound_grace: Duration::from_millis(300), ..Config::default() };
    let daemon = Daemon::with(LIMITS, config);
    let (witness, client) = (daemon.connect(1), daemon.connect(1));
    let pool = client.open_pool(PoolSpec::PERSISTENT).unwrap();
    client.bind_pool(pool).unwrap();
    client.bind_pool(pool).unwrap();
    drop(client);
    until_equal("pools", 0, || witness.pools().unwrap().len());
}

#[test]
fn a_pool_that_was_bound_to_the_daemon_before_goes_unless_it_is_bound_again() {
    let config = Config { bound_grace: GRACE, ..Config::default() };
    let mut daemon = Daemon::with(LIMITS, config);
    let client = daemon.connect(1);
    let pools = [(); 3].map(|()| client.open_pool(PoolSpec::PERSISTENT).unwrap());
    let [bound_again, bound, free] = pools;
    client.bind_pool(bound_again).unwrap();
    client.bind_pool(bound).unwrap();
    daemon.restart(config);
    let witness = daemon.connect(1);
    witness.bind_pool(bound_again).unwrap();
    assert_eq!(witness.pools().unwrap().len(), 3);
    until_equal("pools", 2, || witness.pools().unwrap().len());
    std::thread::sleep(Duration::from_millis(500));
    let left: Vec<_> = witness.pools().unwrap().iter().map(|info| info.pool).collect();
    assert_eq!(left, [bound_again, free]);
}

#[test]
fn only_a_private_pool_of_ones_own_is_bound() {
    let daemon = Daemon::for_many(LIMITS);
    let (mine, other) = (daemon.connect(1), daemon.connect(1));
    let pool = mine.open_pool(PoolSpec::PERSISTENT).unwrap();
    assert!(matches!(other.bind_pool(pool), Err(Error::NoPool)));
    mine.bind_pool(pool).unwrap();
    mine.bind_pool(pool).unwrap();
    assert!(matches!(mine.bind_pool(spillway_client::Pool(99)), Err(Error::NoPool)));
}
