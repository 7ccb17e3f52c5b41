//! A client moves to another daemon while it works: what arrives is what it knows (rule P10).
//!
//! `SPILLWAY_SEED` repeats a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use spillway_client::PoolSpec;

use crate::daemon::{Daemon, number};
use crate::worker::Worker;

const THREADS: u64 = 2;
const TIME: Duration = Duration::from_secs(10);
/// How long the client works before it is exported, and between that and the switch.
const WORK: Duration = Duration::from_millis(500);

#[test]
fn a_client_moves_while_it_works() {
    let seed = number("SPILLWAY_SEED", rand::random());
    println!("seed {seed}");
    let settings = ["store.capacity=128M", "unnamed.users=none"];
    let (from, to) = (Daemon::start(&settings), Daemon::start(&settings));
    let uid = rustix::process::getuid().as_raw();
    let client = format!(r#"{{"name":"c","identity":{{"uid":{uid}}}}}"#);
    for daemon in [&from, &to] {
        daemon.ask("POST", "/v1/clients", client.as_bytes()).unwrap();
    }
    let store = from.connect(TIME);
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    let mut workers: Vec<_> = (0..THREADS).map(|thread| Worker::new(thread, seed)).collect();
    let stop = AtomicBool::new(false);
    let stream = thread::scope(|scope| {
        for worker in &mut workers {
            let (store, stop) = (&*store, &stop);
            scope.spawn(move || worker.work(store, pool, stop));
        }
        thread::sleep(WORK);
        let stream = from.ask("POST", "/v1/clients/c/export", b"").unwrap();
        thread::sleep(WORK);
        stop.store(true, Ordering::Relaxed);
        stream
    });
    to.ask("POST", "/v1/clients/c/import", &stream).unwrap();
    let rest = from.ask("POST", "/v1/clients/c/export?rest=true", b"").unwrap();
    to.ask("POST", "/v1/clients/c/import?rest=true", &rest).unwrap();
    println!("a stream of {} bytes, and a rest of {}", stream.len(), rest.len());

    let moved = to.connect(TIME);
    let pools = moved.pools().unwrap();
    assert_eq!(pools.len(), 1);
    let arrived = pools[0].pool;
    for worker in &mut workers {
        worker.verify(&*store, pool);
        worker.verify(&*moved, arrived);
        assert!(worker.known() > 0, "the move left values to compare");
    }
    // It goes on there.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in &mut workers {
            let (store, stop) = (&*moved, &stop);
            scope.spawn(move || worker.work(store, arrived, stop));
        }
        thread::sleep(WORK);
        stop.store(true, Ordering::Relaxed);
    });
    workers.iter_mut().for_each(|worker| worker.verify(&*moved, arrived));
}
