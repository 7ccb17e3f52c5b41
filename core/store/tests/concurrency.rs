//! Operations that meet, under every schedule that shuttle comes up with.
//!
//! `cargo test -p spillway-store --features shuttle --test concurrency`. Every atomic operation and
//! every lock of the store is a point where shuttle may switch threads.

#![cfg(feature = "shuttle")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config as Exploration, Runner, thread};
use spillway_store::{
    ClientConfig, ClientId, Config, Dedup, Flushed, Get, Key, PAGE_BYTES, Packer, PageBuf, PoolId,
    PoolSpec, Put, Scratch, Store,
};

const SCHEDULES: usize = 400;
const KEY: Key = Key::new(3, 100);
const MIB: u64 = 1 << 20;

/// Runs `body` under many schedules, random ones and ones with few, well-placed switches.
fn explore(body: impl Fn() + Send + Sync + Copy + 'static) {
    fn run(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
        let mut exploration = Exploration::new();
        // Pages lie on the stack here and there.
        exploration.stack_size = 1 << 20;
        exploration.max_steps = shuttle::MaxSteps::None;
        Runner::new(scheduler, exploration).run(body);
    }
    // The switch is one for the process, so one test at a time has it.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    spillway_tiers::sync::explore(true);
    run(RandomScheduler::new(SCHEDULES), body);
    run(PctScheduler::new(3, SCHEDULES), body);
}

fn open(config: Config, spec: PoolSpec) -> (Arc<Store>, ClientId, PoolId) {
    let store = Store::open(config).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, spec).expect("pool");
    (Arc::new(store), client, pool)
}

/// A page that is not uniform, whose every part tells its number.
fn page(number: u8) -> [u8; PAGE_BYTES] {
    let mut page = [number; PAGE_BYTES];
    page[0] = !number;
    page
}

/// The number of a page, all of whose bytes must agree.
fn number_of(page: &[u8]) -> u8 {
    assert!(page[1..].iter().all(|&byte| byte == page[1]), "a page of two values");
    assert_eq!(page[0], !page[1]);
    page[1]
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Put(u8),
    Get(Option<u8>),
    Flush(bool),
    Take(Option<u8>),
}

/// An operation with the times when it was called and when it answered.
#[derive(Clone, Copy, Debug)]
struct Operation {
    called: u64,
    answered: u64,
    event: Event,
}

/// Whether the operations can be put in a row in which each takes effect between its call and its
/// answer, and a plain register gives the same answers (Herlihy and Wing, 1990).
fn linearizable(rest: &[Operation], value: Option<u8>) -> bool {
    let first_answer = rest.iter().map(|operation| operation.answered).min();
    rest.is_empty()
        || (0..rest.len()).any(|at| {
            let Operation { called, event, .. } = rest[at];
            let (fits, next) = match event {
                Event::Put(new) => (true, Some(new)),
                Event::Get(got) => (got == value, value),
                Event::Flush(was) => (was == value.is_some(), None),
                Event::Take(got) => (got == value, None),
            };
            let mut others = rest.to_vec();
            others.remove(at);
            fits && Some(called) < first_answer && linearizable(&others, next)
        })
}

type Call = fn(&Store, PoolId) -> Event;

fn put<const NUMBER: u8>(store: &Store, pool: PoolId) -> Event {
    assert_eq!(store.put(pool, KEY, &page(NUMBER)), Put::Stored);
    Event::Put(NUMBER)
}

fn get(store: &Store, pool: PoolId) -> Event {
    let mut copy = [0; PAGE_BYTES];
    match store.get(pool, KEY, &mut copy).expect("get") {
        Get::Hit(length) => Event::Get(Some(number_of(&copy[..length]))),
        Get::Miss => Event::Get(None),
        Get::Short(length) => panic!("{length} bytes"),
    }
}

fn read(store: &Store, pool: PoolId) -> Event {
    let mut scratch = PageBuf::ZERO;
    let page = store.read_page(pool, KEY, &mut scratch).expect("read");
    let number = page.as_ref().map(|page| number_of(&**page));
    // The reference keeps the frame: its bytes are the same a while later.
    for _ in 0..4 {
        thread::yield_now();
        let again = page.as_ref().map(|page| number_of(&**page));
        assert_eq!(again, number, "a pinned frame has changed");
    }
    drop(page);
    Event::Get(number)
}

fn flush(store: &Store, pool: PoolId) -> Event {
    Event::Flush(store.flush(pool, KEY))
}

fn take(store: &Store, pool: PoolId) -> Event {
    let (mut copy, mut scratch) = ([0; PAGE_BYTES], PageBuf::ZERO);
    let show = |at, part: &[u8]| copy[at..at + part.len()].copy_from_slice(part);
    match store.take(pool, KEY, PAGE_BYTES, &mut scratch, show).expect("take") {
        Get::Hit(length) => Event::Take(Some(number_of(&copy[..length]))),
        Get::Miss => Event::Take(None),
        Get::Short(length) => panic!("{length} bytes"),
    }
}

/// Has each list of calls done by a thread of its own, and checks all answers together.
fn check_register(config: Config, threads: &'static [&'static [Call]]) {
    let (store, client, pool) = open(config, PoolSpec::PERSISTENT);
    let clock = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = threads
        .iter()
        .map(|calls| {
            let (store, clock) = (store.clone(), clock.clone());
            thread::spawn(move || {
                let operate = |call: &Call| {
                    let called = clock.fetch_add(1, Ordering::SeqCst);
                    let event = call(&store, pool);
                    let answered = clock.fetch_add(1, Ordering::SeqCst);
                    Operation { called, answered, event }
                };
                calls.iter().map(operate).collect::<Vec<_>>()
            })
        })
        .collect();
    let demoter = thread::spawn({
        let store = store.clone();
        move || store.demote(2, &mut Scratch::new())
    });
    let mut history: Vec<_> =
        tasks.into_iter().flat_map(|task| task.join().expect("join")).collect();
    demoter.join().expect("join");
    let end = clock.load(Ordering::SeqCst);
    history.push(Operation { called: end, answered: end + 1, event: get(&store, pool) });
    assert!(linearizable(&history, None), "{history:#?}");
    let left = u64::from(store.exists(pool, KEY));
    assert_eq!(store.statistics(client).expect("statistics").used_pages, left, "P13");
    store.flush(pool, KEY);
    assert_eq!(store.compressed_pages(), 0);
}

#[test]
fn p15_puts_gets_and_flushes_of_one_handle_are_linearizable() {
    explore(|| {
        check_register(
            Config::embedded(2 * MIB),
            &[&[put::<1>, get], &[put::<2>, flush], &[read, get]],
        );
    });
}

#[test]
fn p15_also_while_equal_pages_share_a_frame() {
    explore(|| {
        let config = Config { dedup: Dedup::PerClient, ..Config::embedded(2 * MIB) };
        check_register(
            config,
            &[&[put::<1>, flush, put::<1>], &[put::<1>, read], &[put::<2>, get]],
        );
    });
}

/// A page that packs to some 600 bytes, which is enough to be shared.
fn rich_page(number: u8) -> [u8; PAGE_BYTES] {
    core::array::from_fn(|at| match at {
        0..600 => {
            let mixed = (at as u32 + 1).wrapping_mul((u32::from(number) * 2 + 1) * 0x1e37_79b1);
            (mixed >> 24) as u8
        }
        _ => number,
    })
}

/// Puts, gets and flushes equal pages under `key`, packed or not, and leaves one there.
fn use_equal(store: &Store, pool: PoolId, key: Key) {
    let mut scratch = Scratch::new();
    let check = || {
        let mut copy = [0; PAGE_BYTES];
        assert_eq!(store.get(pool, key, &mut copy).expect("get"), Get::Hit(PAGE_BYTES));
        assert!(copy == rich_page(1), "another's page");
    };
    for packs in [true, false, true] {
        let put = if packs {
            store.put_compressed(pool, key, &rich_page(1), &mut scratch)
        } else {
            store.put(pool, key, &rich_page(1))
        };
        assert_eq!(put, Put::Stored);
        check();
        if packs {
            assert!(store.flush(pool, key));
        }
    }
    assert_eq!(store.put(pool, key, &rich_page(1)), Put::Stored);
    check();
}

#[test]
fn equal_pages_that_are_packed_found_and_freed_at_once_stay_right() {
    explore(|| {
        let config = Config { dedup: Dedup::PerClient, ..Config::embedded(2 * MIB) };
        let (store, client, pool) = open(config, PoolSpec::PERSISTENT);
        let keys = [Key::new(1, 1), Key::new(2, 2)];
        let users = keys.map(|key| {
            let store = store.clone();
            thread::spawn(move || use_equal(&store, pool, key))
        });
        let scanner = thread::spawn({
            let store = store.clone();
            move || {
                let mut scratch = Scratch::new();
                for _ in 0..2 {
                    store.demote(2, &mut scratch);
                    store.scan_for_equals(10, &mut Packer::new());
                }
            }
        });
        users.into_iter().chain([scanner]).for_each(|task| task.join().expect("join"));
        // In the end both have one cell, or one frame.
        store.demote(2, &mut Scratch::new());
        for _ in 0..2 {
            store.scan_for_equals(10, &mut Packer::new());
        }
        assert_eq!(store.shared_memory().expect("it shares").values, 2);
        let mut copy = [0; PAGE_BYTES];
        for key in keys {
            assert_eq!(store.get(pool, key, &mut copy).expect("get"), Get::Hit(PAGE_BYTES));
            assert!(copy == rich_page(1), "another's page");
            assert!(store.flush(pool, key));
        }
        assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
        assert_eq!(store.compressed_pages(), 0);
        // What was freed is found by nobody.
        assert_eq!(store.put(pool, keys[0], &rich_page(2)), Put::Stored);
        store.demote(1, &mut Scratch::new());
        assert_eq!(store.put(pool, keys[1], &rich_page(1)), Put::Stored);
        assert_eq!(store.get(pool, keys[1], &mut copy).expect("get"), Get::Hit(PAGE_BYTES));
        assert!(copy == rich_page(1), "another's page");
    });
}

#[test]
fn p15_a_take_removes_the_value_that_it_showed_and_no_other() {
    explore(|| {
        check_register(
            Config::embedded(2 * MIB),
            &[&[put::<1>, take], &[put::<2>, put::<1>], &[take, get]],
        );
    });
}

#[test]
fn p10_nothing_is_put_once_a_client_is_frozen() {
    explore(|| {
        let (store, client, pool) = open(Config::embedded(2 * MIB), PoolSpec::PERSISTENT);
        let putter = thread::spawn({
            let store = store.clone();
            move || {
                for number in [1, 2] {
                    let _: Put = store.put(pool, KEY, &page(number));
                }
            }
        });
        let value = |store: &Store| match get(store, pool) {
            Event::Get(number) => number,
            event => panic!("{event:?}"),
        };
        let used = || store.statistics(client).expect("statistics").used_pages;
        store.freeze(client).expect("freeze");
        let used_frozen = used();
        let exported = value(&store);
        putter.join().expect("join");
        assert!(used() <= used_frozen, "a put was under way still");
        let left = value(&store);
        // A refused put drops the value that it was to replace, and the log says so.
        let log = store.take_flush_log(client).expect("log");
        let dropped = left.is_none() && log.contains(&Flushed::Page(pool, KEY));
        assert!(left == exported || dropped, "{exported:?} became {left:?}");
    });
}

#[test]
fn an_object_knows_its_leaves_whoever_made_them() {
    explore(|| {
        let (store, client, pool) = open(Config::embedded(2 * MIB), PoolSpec::PERSISTENT);
        let keys = [Key::new(3, 100), Key::new(3, 101), Key::new(3, 1000)];
        let changer = thread::spawn({
            let store = store.clone();
            move || {
                assert_eq!(store.put(pool, keys[0], &page(1)), Put::Stored);
                store.flush(pool, keys[0]);
            }
        });
        assert_eq!(store.put(pool, keys[1], &page(2)), Put::Stored);
        assert_eq!(store.put(pool, keys[2], &page(3)), Put::Stored);
        changer.join().expect("join");
        store.flush(pool, keys[2]);
        assert_eq!(store.flush_object(pool, 3), 1, "the second page is left");
        assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
    });
}

#[test]
fn p13_no_race_takes_a_client_past_its_target() {
    explore(|| {
        let (store, client, pool) = open(Config::embedded(2 * MIB), PoolSpec::PERSISTENT);
        store.set_target(client, 2).expect("target");
        let putters: Vec<_> = (0..3)
            .map(|number| {
                let store = store.clone();
                thread::spawn(move || {
                    let key = Key::new(u64::from(number), 0);
                    let stored = store.put(pool, key, &page(number)) == Put::Stored;
                    let used = store.statistics(client).expect("statistics").used_pages;
                    assert!(used <= 2, "{used} pages used of 2");
                    stored
                })
            })
            .collect();
        let stored = putters.into_iter().map(|task| task.join().expect("join"));
        assert_eq!(stored.filter(|&stored| stored).count(), 2, "neither more nor fewer");
    });
}

#[test]
fn a_pinned_frame_is_not_freed_or_reused() {
    explore(|| {
        let (store, _, pool) = open(Config::embedded(2 * MIB), PoolSpec::PERSISTENT);
        assert_eq!(store.put(pool, KEY, &page(1)), Put::Stored);
        let reader = thread::spawn({
            let store = store.clone();
            move || matches!(read(&store, pool), Event::Get(None | Some(1 | 2)))
        });
        let writer = thread::spawn({
            let store = store.clone();
            move || {
                store.flush(pool, KEY);
                // The next page takes the frame that was freed last.
                assert_eq!(store.put(pool, Key::new(3, 101), &page(9)), Put::Stored);
                assert_eq!(store.put(pool, KEY, &page(2)), Put::Stored);
            }
        });
        assert!(reader.join().expect("join"));
        writer.join().expect("join");
    });
}

#[test]
fn an_ephemeral_page_is_got_or_evicted_but_not_both() {
    explore(|| {
        let (store, client, pool) = open(Config::embedded(MIB), PoolSpec::EPHEMERAL);
        spillway_tiers::sync::explore(false);
        let mut index = 0;
        while store.statistics(client).expect("statistics").evicted_pages == 0 {
            assert_eq!(store.put(pool, Key::new(9, index), &page(index as u8 | 1)), Put::Stored);
            index += 1;
        }
        spillway_tiers::sync::explore(true);
        // The two coldest pages are read while puts want their frames.
        let cold: Vec<Key> = (0..index).map(|index| Key::new(9, index)).collect();
        let cold: Vec<Key> =
            cold.into_iter().filter(|&key| store.exists(pool, key)).take(2).collect();
        let before = store.statistics(client).expect("statistics");
        let readers: Vec<_> = cold
            .into_iter()
            .map(|key| {
                let store = store.clone();
                thread::spawn(move || {
                    let mut copy = [0; PAGE_BYTES];
                    let got = store.get(pool, key, &mut copy).expect("get");
                    if got == Get::Hit(PAGE_BYTES) {
                        assert_eq!(number_of(&copy), key.index as u8 | 1);
                    }
                    u64::from(got == Get::Hit(PAGE_BYTES))
                })
            })
            .collect();
        let stored = [0, 1].map(|index| {
            let put = store.put(pool, Key::new(1, index), &page(7));
            u64::from(put == Put::Stored)
        });
        let got: u64 = readers.into_iter().map(|task| task.join().expect("join")).sum();
        let after = store.statistics(client).expect("statistics");
        let evicted = after.evicted_pages - before.evicted_pages;
        let stored: u64 = stored.iter().sum();
        assert_eq!(after.used_pages, before.used_pages + stored - got - evicted, "each left once");
    });
}

#[test]
fn a_destroyed_pool_is_empty_whatever_puts_were_under_way() {
    explore(|| {
        let (store, client, pool) = open(Config::embedded(2 * MIB), PoolSpec::PERSISTENT);
        let putter = thread::spawn({
            let store = store.clone();
            move || {
                for index in [0, 70] {
                    let _ = store.put(pool, Key::new(1, index), &page(1));
                }
            }
        });
        store.destroy_pool(pool).expect("destroy");
        putter.join().expect("join");
        assert_eq!(store.statistics(client).expect("statistics").used_pages, 0, "a leaked page");
    });
}
