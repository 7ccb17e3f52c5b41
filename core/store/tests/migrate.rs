//! P10 under load: a client moves to another store while its threads go on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_store::{
    Backing, ClientConfig, ClientId, Config, Flushed, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Put,
    Refusal, Scratch, Store,
};

const MIB: u64 = 1 << 20;
const RESERVED_PAGES: u64 = 400;
/// Values of a pool that the threads take away. Others stay, however long a busy machine lets them go on.
const CHANGING: u64 = 1000;

fn value(key: Key, round: u64) -> Vec<u8> {
    let seed = key.object << 40 | u64::from(key.index) << 20 | round;
    let length = match seed % 5 {
        0 => 1 + seed as usize % 3000,
        1 => PAGE_BYTES + 1 + seed as usize * 7 % 20_000,
        _ => PAGE_BYTES,
    };
    let byte = |at: usize| (at as u64 * (1 + seed % 13) / 3) as u8 ^ seed as u8;
    (0..length).map(byte).collect()
}

/// All values of a client's pools, by the pools' numbers and the keys.
fn contents(store: &Store, client: ClientId) -> HashMap<(u32, Key), Vec<u8>> {
    let mut all = HashMap::new();
    let mut keys = vec![Key::new(0, 0); 1 << 14];
    for pool in store.pools(client).expect("pools") {
        let count = store.list_keys(pool.id, None, &mut keys).expect("list");
        for key in &keys[..count] {
            let mut value = vec![0; 64 << 10];
            let Ok(Get::Hit(length)) = store.get(pool.id, *key, &mut value) else {
                panic!("{key:?} is listed");
            };
            value.truncate(length);
            all.insert((pool.number, *key), value);
        }
    }
    all
}

/// Does on the target what was done on the source meanwhile.
fn replay(target: &Store, log: Vec<Flushed>, pools: &HashMap<PoolId, PoolId>) {
    for flushed in log {
        match flushed {
            Flushed::Page(pool, key) => {
                target.flush(pools[&pool], key);
            }
            Flushed::Object(pool, object) => {
                target.flush_object(pools[&pool], object);
            }
            Flushed::Pool(pool) => {
                // Destroying twice does no harm.
                let _: Result<(), _> = target.destroy_pool(pools[&pool]);
            }
        }
    }
}

#[test]
fn p10_a_client_moves_while_its_threads_go_on() {
    let source = Store::open(Config::embedded(64 * MIB)).expect("open");
    // The target is of the daemon's kind and has a tenant already, so that numbers differ.
    let config = Config { backing: Backing::Memfd, ..Config::embedded(64 * MIB) };
    let target = Store::open(config).expect("open");
    let tenant = target.add_client(ClientConfig::default()).expect("client");
    target.create_pool(tenant, PoolSpec::PERSISTENT).expect("pool");

    let client = source.add_client(ClientConfig::default()).expect("client");
    let mut pools: Vec<PoolId> =
        (0..3).map(|_| source.create_pool(client, PoolSpec::PERSISTENT).expect("pool")).collect();
    let reserved = source.create_reserved_pool(client, PoolSpec::PERSISTENT, RESERVED_PAGES);
    pools.push(reserved.expect("reserved"));
    let doomed = pools[2];
    let key = |number: u64| Key::new(number % 7, (number / 7) as u32);
    for number in 0..1500 {
        for pool in &pools[..3] {
            assert_eq!(source.put(*pool, key(number), &value(key(number), 0)), Put::Stored);
        }
        let page = Key::new(0, (number % RESERVED_PAGES) as u32);
        assert_eq!(source.put(pools[3], page, &[number as u8; PAGE_BYTES]), Put::Stored);
    }
    source.demote(500, &mut Scratch::new());

    // Pools of the same kinds in the same order, whose numbers are the target's own.
    let moved = target.add_client(ClientConfig::default()).expect("client");
    let (mut to, mut numbers) = (HashMap::new(), HashMap::new());
    for pool in source.pools(client).expect("pools") {
        let made = match pool.reserved_pages {
            0 => target.create_pool(moved, pool.spec),
            pages => target.create_reserved_pool(moved, pool.spec, pages),
        };
        let made = made.expect("pool");
        let info = target.pools(moved).expect("pools").into_iter().find(|p| p.id == made);
        numbers.insert(pool.number, info.expect("info").number);
        to.insert(pool.id, made);
    }

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (source, pools, stop) = (&source, &pools, &stop);
            scope.spawn(move || {
                let mut number = thread;
                while !stop.load(Ordering::Relaxed) {
                    number = number * 48_271 % 0x7fff_ffff + 1;
                    let pool = pools[number as usize % 3];
                    match number % 40 {
                        0 => {
                            source.flush(pool, key(number % CHANGING));
                        }
                        // The old value goes with the refused put, and the log knows.
                        1 => match source.put(pool, key(number % CHANGING), b"new") {
                            Put::Stored | Put::Refused(Refusal::Frozen | Refusal::NoPool) => {}
                            other @ Put::Refused(_) => panic!("{other:?}"),
                        },
                        2 if number % 1000 == 2 => {
                            source.flush_object(pool, number % 5);
                        }
                        // The pool may be gone.
                        _ => drop(source.get(pool, key(number % 1500), &mut [0; 64 << 10])),
                    }
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        source.freeze(client).expect("freeze");
        for (from, its) in &to {
            let mut shown = 0;
            let exported = source.export(*from, |key, value| {
                assert_eq!(target.put(*its, key, value), Put::Stored);
                shown += 1;
                if *from == doomed && shown == 100 {
                    source.destroy_pool(doomed).expect("destroy");
                }
            });
            assert!(exported.is_ok() || *from == doomed, "{exported:?}");
            replay(&target, source.take_flush_log(client).expect("log"), &to);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Nobody uses the source any more: what the log has now is all.
    replay(&target, source.take_flush_log(client).expect("log"), &to);
    let renumbered = |((number, key), value)| ((numbers[&number], key), value);
    let expected: HashMap<_, _> = contents(&source, client).into_iter().map(renumbered).collect();
    assert!(expected.len() > 500);
    assert!(contents(&target, moved) == expected, "the target equals the source");
    let statistics = |store: &Store, client| store.statistics(client).expect("statistics");
    let (before, after) = (statistics(&source, client), statistics(&target, moved));
    assert_eq!(before.used_pages, after.used_pages);
    assert_eq!(before.reserved_pages, after.reserved_pages);
}
