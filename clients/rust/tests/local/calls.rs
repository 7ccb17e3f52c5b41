//! Every call, over every transport to a store on this host.

use std::time::{Duration, Instant};

use crate::daemon::{Daemon, LIMITS};
use spillway_client::{
    Error, Get, Key, Operation, Outcome, Pool, PoolSpec, Put, Store, VALUE_BYTES_MAX,
};
use spillway_test_support::random::noise;

/// Runs a test over an embedded store and over a ring.
fn over_each(test: impl Fn(&dyn Store)) {
    test(&*spillway_client::open("embed:?capacity=128M").expect("an embedded store"));
    let daemon = Daemon::for_one(LIMITS);
    let url = format!("ring:{}", daemon.path.display());
    test(&*spillway_client::open(&url).expect("a ring"));
}

const LENGTHS: [usize; 12] =
    [1, 7, 8, 100, 255, 256, 4095, 4096, 4097, 65_536, (1 << 20) + 3, VALUE_BYTES_MAX];

#[test]
fn values_of_all_lengths_come_back_and_go() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        for (number, bytes) in LENGTHS.into_iter().enumerate() {
            let (key, value) = (Key::new(u64::MAX - 3, number as u32), noise(7_u32, bytes));
            let mut got = vec![0; VALUE_BYTES_MAX];
            assert_eq!(store.get(pool, key, &mut got).unwrap(), Get::Miss);
            assert_eq!(store.put(pool, key, &value).unwrap(), Put::Stored);
            assert!(store.exists(pool, key).unwrap());
            assert_eq!(store.get(pool, key, &mut got).unwrap(), Get::Hit(bytes));
            assert!(got[..bytes] == value, "{bytes} bytes");
            let short = &mut got[..bytes - 1];
            assert_eq!(store.get(pool, key, short).unwrap(), Get::Short(bytes));
            assert_eq!(store.take(pool, key, short).unwrap(), Get::Short(bytes));
            got.fill(0);
            assert_eq!(store.take(pool, key, &mut got).unwrap(), Get::Hit(bytes));
            assert!(got[..bytes] == value, "{bytes} bytes taken");
            assert!(!store.exists(pool, key).unwrap());
            assert_eq!(store.take(pool, key, &mut got).unwrap(), Get::Miss);
        }
        for wrong in [0, VALUE_BYTES_MAX + 1] {
            let put = store.put(pool, Key::new(1, 1), &vec![1; wrong]);
            assert!(matches!(put, Err(Error::Length { bytes, .. }) if bytes == wrong), "{put:?}");
        }
    });
}

#[test]
fn a_batch_gives_each_operation_its_outcome() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        let values: Vec<Vec<u8>> =
            (0..300).map(|number: u32| noise(number, LENGTHS[number as usize % 11])).collect();
        let key = |number: usize| Key::new(1, number as u32);
        let mut puts: Vec<Operation<'_>> = (values.iter().enumerate())
            .map(|(at, value)| Operation::Put { pool, key: key(at), value })
            .collect();
        let mut outcomes = Vec::new();
        store.batch(&mut puts, &mut outcomes);
        assert_eq!(outcomes.len(), values.len());
        assert!(outcomes.iter().all(|o| matches!(o, Ok(Outcome::Put(Put::Stored)))));

        let mut buffers: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
        let mut gets: Vec<Operation<'_>> = (buffers.iter_mut().enumerate())
            .map(|(at, value)| Operation::Get { pool, key: key(at), value })
            .collect();
        gets.push(Operation::Exists { pool, key: key(300) });
        gets.push(Operation::Flush { pool, key: key(301) });
        gets.push(Operation::Put { pool, key: key(302), value: &[] });
        gets.push(Operation::Exists { pool: Pool(u64::MAX), key: key(0) });
        store.batch(&mut gets, &mut outcomes);
        for (value, outcome) in values.iter().zip(&outcomes) {
            assert!(matches!(outcome, Ok(Outcome::Get(Get::Hit(n))) if *n == value.len()));
        }
        assert!(matches!(outcomes[300], Ok(Outcome::Exists(false))));
        assert!(matches!(outcomes[301], Ok(Outcome::Flushed(0))));
        assert!(matches!(outcomes[302], Err(Error::Length { bytes: 0, .. })));
        drop(gets);
        assert!(buffers == values);
        store.batch(&mut [], &mut outcomes);
        assert!(outcomes.is_empty());
    });
}

#[test]
fn a_batch_whose_time_is_over_sends_nothing_and_the_connection_stays() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        let values: Vec<Vec<u8>> =
            (0..300).map(|number: u32| noise(number, LENGTHS[number as usize % 11])).collect();
        let key = |number: usize| Key::new(1, number as u32);
        let mut outcomes = Vec::new();
        let mut puts: Vec<Operation<'_>> = (values.iter().enumerate())
            .map(|(at, value)| Operation::Put { pool, key: key(at), value })
            .collect();
        assert!(!store.batch_until(&mut puts, &mut outcomes, Instant::now()));
        assert_eq!(outcomes.len(), values.len());
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Timeout))));
        assert!(!store.exists(pool, key(0)).unwrap() && !store.exists(pool, key(299)).unwrap());
        let far = Instant::now() + Duration::from_secs(3600);
        assert!(store.batch_until(&mut puts, &mut outcomes, far));
        assert_eq!(outcomes.len(), values.len());
        assert!(outcomes.iter().all(|o| matches!(o, Ok(Outcome::Put(Put::Stored)))));
        assert!(store.batch_until(&mut [], &mut outcomes, far) && outcomes.is_empty());
    });
}

#[test]
fn a_batch_stops_at_its_deadline_wherever_it_is() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        let flush = |number| Operation::Flush { pool, key: Key::new(1, number) };
        let mut all: Vec<_> = (0..200_000).map(flush).collect();
        let mut outcomes = Vec::new();
        let mut whole = || {
            let began = Instant::now();
            assert!(store.batch_until(&mut all, &mut outcomes, began + Duration::from_secs(3600)));
            began.elapsed()
        };
        let shortest = (0..3).map(|_| whole()).min().unwrap();
        // In an eighth of its shortest time, the same batch can't end.
        assert!(!store.batch_until(&mut all, &mut outcomes, Instant::now() + shortest / 8));
        assert_eq!(outcomes.len(), all.len());
        assert!(matches!(outcomes.last(), Some(Err(Error::Timeout))));
        assert!(!store.exists(pool, Key::new(1, 1)).unwrap(), "the connection stays");
    });
}

#[test]
fn operations_of_a_batch_on_one_key_take_effect_in_their_order() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        let (key, other) = (Key::new(1, 1), Key::new(1, 2));
        let pages: Vec<_> = (0..5).map(|number: u32| noise(number, 4096)).collect();
        let put = |key, at: usize| Operation::Put { pool, key, value: &pages[at] };
        let mut got = [[0; 4096]; 3];
        let [second, none, last] = &mut got;
        let mut outcomes = Vec::new();
        let operations = &mut [
            put(key, 0),
            put(key, 1),
            Operation::Get { pool, key, value: second },
            put(key, 2),
            Operation::Flush { pool, key },
            Operation::Get { pool, key, value: none },
            put(other, 4),
            put(key, 3),
            Operation::Get { pool, key, value: last },
        ];
        store.batch(operations, &mut outcomes);
        let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
        let (stored, hit) = (Outcome::Put(Put::Stored), Outcome::Get(Get::Hit(4096)));
        let (flushed, miss) = (Outcome::Flushed(1), Outcome::Get(Get::Miss));
        assert_eq!(outcomes, [stored, stored, hit, stored, flushed, miss, stored, stored, hit]);
        assert!(got[0] == *pages[1] && got[2] == *pages[3]);
        assert_eq!(store.statistics().unwrap().used_pages, 2);
    });
}

#[test]
fn pools_and_keys_are_listed() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        let other = store.open_pool(PoolSpec::EPHEMERAL).unwrap();
        for number in 0..3000 {
            let key = Key::new(number % 7, number as u32);
            assert_eq!(store.put(pool, key, &[1; 5000]).unwrap(), Put::Stored);
        }
        let pools = store.pools().unwrap();
        assert_eq!(pools.len(), 2);
        let info = pools.iter().find(|info| info.pool == pool).unwrap();
        assert_eq!((info.spec, info.pages), (PoolSpec::PERSISTENT, 6000));
        assert_ne!(pools[0].identity, pools[1].identity);

        let mut keys = store.list(pool, None, usize::MAX).unwrap();
        assert_eq!(keys.len(), 3000);
        let first = store.list(pool, None, 10).unwrap();
        assert_eq!(first, keys[..10]);
        assert_eq!(store.list(pool, Some(keys[9]), 5).unwrap(), keys[9..14]);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 3000);
        assert_eq!(store.list(other, None, 9).unwrap(), []);

        assert!(store.flush(pool, keys[0]).unwrap() && !store.flush(pool, keys[0]).unwrap());
        assert_eq!(store.flush_object(pool, 6).unwrap(), 2 * 428);
        let statistics = store.statistics().unwrap();
        assert_eq!((statistics.puts_stored, statistics.used_pages), (3000, 6000 - 2 - 2 * 428));
        store.close_pool(pool).unwrap();
        assert_eq!(store.pools().unwrap().len(), 1);
        assert_eq!(store.statistics().unwrap().used_pages, 0);
    });
}

#[test]
fn a_pool_that_is_gone_is_told_and_its_number_serves_the_next() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        assert_eq!(store.put(pool, Key::new(1, 1), b"old").unwrap(), Put::Stored);
        store.close_pool(pool).unwrap();
        let mut value = [0; 8];
        assert!(matches!(store.get(pool, Key::new(1, 1), &mut value), Err(Error::NoPool)));
        assert!(matches!(store.put(pool, Key::new(1, 1), b"x"), Err(Error::NoPool)));
        assert!(matches!(store.close_pool(pool), Err(Error::NoPool)));
        assert!(matches!(store.list(pool, None, 1), Err(Error::NoPool)));
        let next = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        assert_eq!(store.get(next, Key::new(1, 1), &mut value).unwrap(), Get::Miss);
        assert_eq!(store.put(next, Key::new(1, 1), b"new").unwrap(), Put::Stored);
        assert!(store.flush(next, Key::new(1, 1)).unwrap());
    });
}

#[test]
fn private_ephemeral_values_are_got_once() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::EPHEMERAL).unwrap();
        for bytes in [100, 4096, 70_000] {
            let key = Key::new(1, bytes as u32);
            assert_eq!(store.put(pool, key, &noise(1_u32, bytes)).unwrap(), Put::Stored);
            let mut got = vec![0; VALUE_BYTES_MAX];
            assert_eq!(store.get(pool, key, &mut got).unwrap(), Get::Hit(bytes));
            assert!(got[..bytes] == noise(1_u32, bytes));
            assert_eq!(store.get(pool, key, &mut got).unwrap(), Get::Miss);
        }
    });
}

#[test]
fn many_threads_share_a_store() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..6_u32 {
                scope.spawn(move || {
                    let mut got = vec![0; 16 << 10];
                    for round in 0..2000_u32 {
                        let key = Key::new(thread.into(), round % 50);
                        let value =
                            noise(thread * 10_000 + round, [100, 4096, 9000][round as usize % 3]);
                        assert_eq!(store.put(pool, key, &value).unwrap(), Put::Stored);
                        let bytes = value.len();
                        assert_eq!(store.get(pool, key, &mut got).unwrap(), Get::Hit(bytes));
                        assert!(got[..bytes] == value);
                    }
                });
            }
        });
        assert_eq!(store.statistics().unwrap().puts_stored, 12_000);
    });
}

#[test]
fn a_batch_carries_values_of_all_lengths() {
    over_each(|store| {
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        let lengths = [300 << 10, 1 << 20, 5000, 10, 256 << 10, 3 << 20, 4096, (64 << 10) + 1];
        let length = |number: u32| match number {
            50 => VALUE_BYTES_MAX,
            _ => lengths[number as usize % lengths.len()],
        };
        let key = |number| Key::new(9, number);
        let values: Vec<Vec<u8>> =
            (0..60).map(|number: u32| noise(number, length(number))).collect();
        let put = |(number, value)| Operation::Put { pool, key: key(number), value };
        let mut puts: Vec<_> =
            (0..).zip(&values).map(|(number, value)| put((number, &value[..]))).collect();
        let mut outcomes = Vec::new();
        store.batch(&mut puts, &mut outcomes);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Outcome::Put(Put::Stored)))));
        // Buffers that fit, are too short, and are longer; and keys without a value.
        let room = |number: u32| match number % 3 {
            0 => length(number),
            1 => length(number) - 1,
            _ => length(number) + 100_000,
        };
        let mut rooms: Vec<Vec<u8>> = (0..70).map(|number| vec![0; room(number)]).collect();
        let get = |(number, value)| Operation::Get { pool, key: key(number), value };
        let mut gets: Vec<_> =
            (0..).zip(&mut rooms).map(|(number, room)| get((number, &mut room[..]))).collect();
        store.batch(&mut gets, &mut outcomes);
        for (number, (outcome, room)) in (0_u32..).zip(outcomes.iter().zip(&rooms)) {
            let expected = match number {
                60.. => Get::Miss,
                _ if number % 3 == 1 => Get::Short(length(number)),
                _ => Get::Hit(length(number)),
            };
            assert!(
                matches!(outcome, Ok(Outcome::Get(got)) if *got == expected),
                "{number}: {outcome:?}"
            );
            if expected == Get::Hit(length(number)) {
                assert!(room[..length(number)] == values[number as usize], "value {number}");
            }
        }
    });
}

#[test]
fn a_capacity_that_no_store_can_have_is_an_invalid_url() {
    for (url, why) in [("embed:?capacity=1", "less than"), ("embed:?capacity=1T", "more than")] {
        let error = spillway_client::open(url).err().expect("an invalid URL");
        assert!(matches!(error, Error::Url { .. }) && error.to_string().contains(why), "{error}");
    }
}
