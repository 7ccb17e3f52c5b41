//! kill -9 of the daemon at random points under load: what was acknowledged is there again.
//!
//! `SPILLWAY_KILLS` says how often (default 20); `SPILLWAY_SEED` repeats a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spillway_client::PoolSpec;

use crate::daemon::{Daemon, number};
use crate::worker::Worker;

const THREADS: u64 = 2;
/// Longest time between the restart and the death of a daemon.
const LIFE_MAX: Duration = Duration::from_millis(40);
/// A daemon is back within this time.
const BACK: Duration = Duration::from_secs(10);

#[test]
fn what_was_acknowledged_survives_kills_at_random_points() {
    let kills = number("SPILLWAY_KILLS", 20);
    let seed = number("SPILLWAY_SEED", rand::random());
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let daemon = Daemon::start(&["store.capacity=64M", "unnamed.users=same"]);
    let mut identity = None;
    let mut workers: Vec<_> = (0..THREADS).map(|thread| Worker::new(thread, seed)).collect();
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
