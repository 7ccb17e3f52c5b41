//! kill -9 of the daemon at random points under load: what was acknowledged is there again.
//!
//! `SPILLWAY_KILLS` says how often (default 20); `SPILLWAY_SEED` repeats a run.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spillway_client::{Get, Key, Pool, PoolSpec, Put, Store};
use support::Daemon;

/// Keys that a thread uses.
const KEYS: u32 = 2000;
const THREADS: u64 = 2;
/// Longest time between the restart and the death of a daemon.
const LIFE_MAX: Duration = Duration::from_millis(40);
/// A daemon is back within this time.
const BACK: Duration = Duration::from_secs(10);

/// What a thread knows of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The version that was acknowledged last; 0 is none.
    sure: u64,
    /// What was under way when the daemon died; it may have happened or not.
    maybe: Option<u64>,
}

/// The value of a version of a key: of any length, and of its own content all over.
fn value_of(thread: u64, index: u32, version: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(thread << 56 ^ u64::from(index) << 40 ^ version);
    let length = match version % 4 {
        0 => rng.random_range(1..200),
        1 => rng.random_range(4097..20_000),
        _ => 4096,
    };
    let mut value = vec![0; length];
    if version.is_multiple_of(3) {
        value.fill(version as u8);
    } else {
        rng.fill(&mut value[..]);
    }
    value
}

struct Worker {
    thread: u64,
    keys: HashMap<u32, Known>,
    version: u64,
    rng: StdRng,
}

impl Worker {
    /// Works until the connection ends. Every answer is checked against what is known.
    fn work(&mut self, store: &dyn Store, pool: Pool, stop: &AtomicBool) {
        let mut buffer = vec![0; 32 << 10];
        while !stop.load(Ordering::Relaxed) {
            let index = self.rng.random_range(0..KEYS);
            let key = Key::new(self.thread, index);
            let known = self.keys.entry(index).or_default();
            match self.rng.random_range(0..10) {
                0..6 => {
                    self.version += 1;
                    let value = value_of(self.thread, index, self.version);
                    known.maybe = Some(self.version);
                    match store.put(pool, key, &value) {
                        Ok(Put::Stored) => *known = Known { sure: self.version, maybe: None },
                        // After a refusal the old value is gone too.
                        Ok(Put::Refused(_)) => *known = Known::default(),
                        Err(_) => return,
                    }
                }
                6 => {
                    known.maybe = Some(0);
                    match store.flush(pool, key) {
                        Ok(_) => *known = Known::default(),
                        Err(_) => return,
                    }
                }
                _ => match store.get(pool, key, &mut buffer) {
                    Ok(got) => self.check(index, got, &buffer),
                    Err(_) => return,
                },
            }
        }
    }

    fn check(&mut self, index: u32, got: Get, buffer: &[u8]) {
        let known = self.keys.entry(index).or_default();
        let is = |version: u64| match got {
            Get::Miss => version == 0,
            Get::Hit(length) => {
                version != 0 && buffer[..length] == value_of(self.thread, index, version)
            }
            Get::Short(length) => panic!("a value of {length} bytes, which nobody stored"),
        };
        if known.maybe.is_some_and(is) {
            *known = Known { sure: known.maybe.unwrap_or_default(), maybe: None };
        } else {
            assert!(is(known.sure), "thread {} key {index}: {known:?}, got {got:?}", self.thread);
            known.maybe = None;
        }
    }

    /// Reads everything that is known.
    fn verify(&mut self, store: &dyn Store, pool: Pool) {
        let mut buffer = vec![0; 32 << 10];
        let mut indexes: Vec<_> = self.keys.keys().copied().collect();
        indexes.sort_unstable();
        for index in indexes {
            let got = store.get(pool, Key::new(self.thread, index), &mut buffer).unwrap();
            self.check(index, got, &buffer);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn what_was_acknowledged_survives_kills_at_random_points() {
    let kills = number("SPILLWAY_KILLS", 20);
    let seed = number("SPILLWAY_SEED", rand::random());
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let daemon = Daemon::start(&["store.capacity=64M", "unnamed.users=same"]);
    let mut identity = None;
    let mut workers: Vec<_> = (0..THREADS)
        .map(|thread| Worker {
            thread,
            keys: HashMap::new(),
            version: 0,
            rng: StdRng::seed_from_u64(seed ^ thread),
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for kill in 0..kills {
        let store = daemon.connect(BACK);
        if kill == 0 {
            store.open_pool(PoolSpec::PERSISTENT).unwrap();
        }
        let pools = store.pools().unwrap();
        assert_eq!(pools.len(), 1, "kill {kill}: the pool is there, and no other");
        assert_eq!(*identity.get_or_insert(pools[0].identity), pools[0].identity);
        let pool = pools[0].pool;
        if kill % 10 == 0 {
            workers.iter_mut().for_each(|worker| worker.verify(&*store, pool));
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for worker in &mut workers {
                let (store, stop) = (&*store, &stop);
                scope.spawn(move || worker.work(store, pool, stop));
            }
            thread::sleep(rng.random_range(Duration::ZERO..LIFE_MAX));
            daemon.kill();
            let died = Instant::now();
            daemon.wait_for_restart(BACK);
            slowest = slowest.max(died.elapsed());
            stop.store(true, Ordering::Relaxed);
        });
    }
    let store = daemon.connect(BACK);
    let pool = store.pools().unwrap()[0].pool;
    workers.iter_mut().for_each(|worker| worker.verify(&*store, pool));
    println!("{kills} kills, the slowest restart took {slowest:?}");
    assert!(slowest < Duration::from_secs(2), "a restart took {slowest:?}");
}
