//! Clients of one daemon can't observe each other, and stay within their limits.

use crate::daemon::{Daemon, LIMITS};
use spillway_client::{Error, Get, Key, Operation, Pool, PoolSpec, Put, Ring, RingOptions, Store};
use spillway_ring::Config;
use spillway_test_support::wait::until_equal;
use spillway_types::Limits;

#[test]
fn a_pool_of_another_client_is_like_one_that_is_not_there() {
    let daemon = Daemon::for_many(LIMITS);
    let (owner, stranger) = (daemon.connect(1), daemon.connect(1));
    let pools: Vec<Pool> = (0..5).map(|_| owner.open_pool(PoolSpec::PERSISTENT).unwrap()).collect();
    let key = Key::new(7, 7);
    for &pool in &pools {
        assert_eq!(owner.put(pool, key, &[5; 4096]).unwrap(), Put::Stored);
    }
    let mut value = [0; 4096];
    // The owner's pools, and numbers of pools that do not exist.
    let numbers = pools.iter().map(|pool| pool.0).chain([0, 6, 1000, 0xffff_ffff]);
    let said = |error: Error| {
        assert!(matches!(error, Error::NoPool), "{error}");
        error.to_string()
    };
    for pool in numbers.map(Pool) {
        let answers = [
            said(stranger.get(pool, key, &mut value).unwrap_err()),
            said(stranger.take(pool, key, &mut value).unwrap_err()),
            said(stranger.put(pool, key, &[6; 4096]).unwrap_err()),
            said(stranger.flush(pool, key).unwrap_err()),
            said(stranger.flush_object(pool, key.object).unwrap_err()),
            said(stranger.exists(pool, key).unwrap_err()),
            said(stranger.list(pool, None, 10).unwrap_err()),
            said(stranger.close_pool(pool).unwrap_err()),
        ];
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        assert_eq!(value, [0; 4096]);
    }
    assert_eq!(stranger.pools().unwrap(), []);
    let statistics = stranger.statistics().unwrap();
    assert_eq!((statistics.used_pages, statistics.puts, statistics.gets), (0, 0, 0));
    assert_eq!(owner.statistics().unwrap().used_pages, 5);
    for &pool in &pools {
        assert_eq!(owner.get(pool, key, &mut value).unwrap(), Get::Hit(4096));
        assert_eq!(value, [5; 4096]);
    }
}

#[test]
fn a_shared_pool_needs_the_operators_word() {
    let daemon = Daemon::for_many(LIMITS);
    let ring = daemon.connect(1);
    let opened = ring.open_pool(PoolSpec::shared_persistent(77));
    assert!(matches!(opened, Err(Error::Unauthorised)), "{opened:?}");
    assert!(matches!(ring.join_pool(77), Err(Error::Unauthorised)));
}

#[test]
fn frames_and_data_area_never_show_old_bytes() {
    let daemon = Daemon::for_many(LIMITS);
    let (first, second) = (daemon.connect(1), daemon.connect(1));
    let pool = first.open_pool(PoolSpec::PERSISTENT).unwrap();
    for index in 0..500 {
        assert_eq!(first.put(pool, Key::new(1, index), &[0xaa; 4096]).unwrap(), Put::Stored);
    }
    first.close_pool(pool).unwrap();
    let pool = second.open_pool(PoolSpec::PERSISTENT).unwrap();
    for index in 0..500 {
        // Values of a frame's length, and shorter ones: the rest of the frame must not leak.
        let bytes = if index % 2 == 0 { 4096 } else { 3500 };
        assert_eq!(second.put(pool, Key::new(1, index), &vec![1; bytes]).unwrap(), Put::Stored);
        let mut value = [0; 4096];
        assert_eq!(second.get(pool, Key::new(1, index), &mut value).unwrap(), Get::Hit(bytes));
        assert!(value[..bytes].iter().all(|&byte| byte == 1));
        assert!(value[bytes..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn limits_bound_connections_operations_and_bytes() {
    let limits = Limits { connections_max: 2, operations_max: 24, bytes_max: 1 << 20 };
    let daemon = Daemon::for_one(limits);
    let options = |depth| RingOptions { depth, connections_max: 1, ..RingOptions::default() };
    let ring = Ring::connect_with(&daemon.path, options(16)).unwrap();
    // At most a MiB may be in flight, so no value is longer.
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    let key = Key::new(1, 1);
    assert_eq!(ring.put(pool, key, &vec![1; 1 << 20]).unwrap(), Put::Stored);
    let put = ring.put(pool, key, &vec![1; (1 << 20) + 1]);
    assert!(matches!(put, Err(Error::Length { limit, .. }) if limit == 1 << 20), "{put:?}");
    // First the bytes are used up, then the connections.
    let refused = |depth| match Ring::connect_with(&daemon.path, options(depth)) {
        Err(Error::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(8).contains("limits"));
    drop(ring);
    until_equal("the connections inside", 0, || daemon.inside());
    // Both rings are as deep as the limits allow together.
    let daemon = Daemon::for_one(Limits { bytes_max: 64 << 20, ..limits });
    let first = Ring::connect_with(&daemon.path, options(16)).unwrap();
    let second = Ring::connect_with(&daemon.path, options(16)).unwrap();
    let pool = first.open_pool(PoolSpec::PERSISTENT).unwrap();
    for ring in [&first, &second] {
        let mut puts: Vec<Operation<'_>> =
            (0..100).map(|at| Operation::Put { pool, key: Key::new(2, at), value: &[1] }).collect();
        let mut outcomes = Vec::new();
        ring.batch(&mut puts, &mut outcomes);
        assert!(outcomes.iter().all(Result::is_ok));
    }
    match Ring::connect_with(&daemon.path, options(1)) {
        Err(Error::Refused { why, .. }) => assert!(why.contains("connections"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_with_more_threads_than_connections_gets_along() {
    let daemon = Daemon::for_one(Limits { connections_max: 2, ..LIMITS });
    let ring = daemon.connect(8);
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let ring = &ring;
            scope.spawn(move || {
                for index in 0..500 {
                    let key = Key::new(thread, index);
                    assert_eq!(ring.put(pool, key, &[thread as u8; 200]).unwrap(), Put::Stored);
                }
            });
        }
    });
    assert_eq!(ring.statistics().unwrap().puts_stored, 4000);
    assert!(daemon.inside() <= 2);
    // A client that was refused once does not ask for more.
    assert!(daemon.turned_away() <= 8, "{} were turned away", daemon.turned_away());
}

#[test]
fn who_finds_no_place_at_a_full_server_takes_none_of_its_client_s() {
    let config = Config { connections_max: 2, ..Config::default() };
    let daemon = Daemon::with(Limits { connections_max: 4, ..LIMITS }, config);
    let rings = [daemon.connect(1), daemon.connect(1)];
    for _ in 0..8 {
        match Ring::connect_with(&daemon.path, RingOptions::default()) {
            Err(Error::Refused { why, .. }) => assert!(why.contains("connections"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((daemon.inside(), daemon.turned_away()), (2, 0));
    drop(rings);
}
