//! Reading values where they lie, and taking them out.

use std::sync::atomic::{AtomicU64, Ordering};

use spillway_store::{
    ClientConfig, Config, DiskConfig, Get, Key, PAGE_BYTES, PageBuf, PoolId, PoolSpec, Put,
    Scratch, Store,
};
use spillway_test_support::random::noise;

/// One persistent pool in a store with files, and little memory.
fn store() -> (Store, PoolId) {
    let disk = DiskConfig::new(std::env::temp_dir(), 64 << 20);
    let config = Config { disk: Some(disk), ..Config::embedded(4 << 20) };
    let store = Store::open(config).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    (store, pool)
}

fn read(store: &Store, pool: PoolId, key: Key, room: usize) -> (Get, Vec<u8>) {
    let (mut shown, mut scratch) = (vec![0; room], PageBuf::ZERO);
    let value = store.look_up(pool, key, room).expect("look up");
    let (got, _held) = value
        .show(&mut scratch, |at, part| shown[at..][..part.len()].copy_from_slice(part))
        .expect("show");
    (got, shown)
}

fn take(store: &Store, pool: PoolId, key: Key, room: usize) -> (Get, Vec<u8>) {
    let (mut shown, mut scratch) = (vec![0; room], PageBuf::ZERO);
    let got = store
        .take(pool, key, room, &mut scratch, |at, part| {
            shown[at..][..part.len()].copy_from_slice(part);
        })
        .expect("take");
    (got, shown)
}

#[test]
fn values_of_all_lengths_are_shown_whole_and_taken_once() {
    let (store, pool) = store();
    for (number, bytes) in
        [1, 100, 2048, 3500, 4096, 4097, 8192, 70_000, 1 << 20].into_iter().enumerate()
    {
        let (key, value) = (Key::new(7, number as u32), noise(number as u32, bytes));
        assert_eq!(store.put(pool, key, &value), Put::Stored);
        assert_eq!(read(&store, pool, key, bytes), (Get::Hit(bytes), value.clone()));
        assert_eq!(read(&store, pool, key, bytes - 1).0, Get::Short(bytes));
        assert_eq!(take(&store, pool, key, bytes - 1).0, Get::Short(bytes));
        assert_eq!(take(&store, pool, key, bytes), (Get::Hit(bytes), value));
        assert_eq!(take(&store, pool, key, bytes).0, Get::Miss);
        assert!(!store.exists(pool, key));
    }
}

#[test]
fn pages_of_every_tier_are_taken() {
    let (store, pool) = store();
    let mut scratch = Scratch::new();
    let page = |number: u32| match number % 3 {
        0 => vec![number as u8; PAGE_BYTES],
        1 => (0..PAGE_BYTES).map(|at| number as u8 ^ (at / 100) as u8).collect(),
        _ => noise(number, PAGE_BYTES),
    };
    let pages = 3_000;
    for number in 0..pages {
        let key = Key::new(1, number);
        while store.put_compressed(pool, key, &page(number), &mut scratch) != Put::Stored {
            assert!(store.demote(64, &mut scratch) > 0);
        }
    }
    assert!(
        store.disk_bytes() > 0 && store.compressed_pages() > 0 && store.same_filled_pages() > 0
    );
    for number in 0..pages {
        let key = Key::new(1, number);
        assert_eq!(read(&store, pool, key, PAGE_BYTES), (Get::Hit(PAGE_BYTES), page(number)));
        assert_eq!(take(&store, pool, key, PAGE_BYTES), (Get::Hit(PAGE_BYTES), page(number)));
        assert!(!store.exists(pool, key));
    }
    assert_eq!((store.disk_bytes(), store.compressed_pages()), (0, 0));
}

#[test]
fn of_many_takers_one_gets_each_value() {
    let (store, pool) = store();
    let (taken, puts) = (AtomicU64::new(0), 1_000_u64);
    let key = Key::new(3, 3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while taken.load(Ordering::Relaxed) < puts * (puts + 1) / 2 {
                    let (got, shown) = take(&store, pool, key, PAGE_BYTES);
                    if got == Get::Hit(PAGE_BYTES) {
                        let number = u64::from_ne_bytes(shown[..8].try_into().expect("8 bytes"));
                        let same = shown.chunks_exact(8).all(|word| word == number.to_ne_bytes());
                        assert!(same, "a torn page");
                        taken.fetch_add(number, Ordering::Relaxed);
                    }
                }
            });
        }
        for number in 1..=puts {
            // Not over a value that nobody has taken yet.
            while store.exists(pool, key) {
                std::thread::yield_now();
            }
            assert_eq!(store.put(pool, key, &number.to_ne_bytes().repeat(512)), Put::Stored);
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), puts * (puts + 1) / 2);
}

/// A page of which every word tells its number and place.
fn marked(number: u64) -> Vec<u8> {
    (0..PAGE_BYTES as u64 / 8).flat_map(|at| (number << 16 | at).to_ne_bytes()).collect()
}

#[test]
fn a_page_that_is_held_stays_as_it_was_when_another_takes_its_place() {
    let (store, pool) = store();
    let key = Key::new(1, 1);
    assert_eq!(store.put(pool, key, &marked(0)), Put::Stored);
    let mut scratch = PageBuf::ZERO;
    let held = store.read_page(pool, key, &mut scratch).expect("read").expect("page");
    for number in 1..4 {
        assert_eq!(store.put(pool, key, &marked(number)), Put::Stored);
        assert_eq!(read(&store, pool, key, PAGE_BYTES).1, marked(number));
        assert!(*held == marked(0)[..]);
    }
    drop(held);
}

#[test]
fn nobody_reads_half_of_a_page() {
    let (store, pool) = store();
    let key = Key::new(1, 1);
    assert_eq!(store.put(pool, key, &marked(0)), Put::Stored);
    let store = &store;
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            scope.spawn(move || {
                for round in 0..20_000 {
                    let put = store.put(pool, key, &marked(round << 1 | writer));
                    assert_eq!(put, Put::Stored);
                }
            })
        });
        let mut page = vec![0; PAGE_BYTES];
        while !writers.iter().all(|writer| writer.is_finished()) {
            assert_eq!(store.get(pool, key, &mut page).expect("get"), Get::Hit(PAGE_BYTES));
            let first = u64::from_ne_bytes(page[..8].try_into().expect("a word"));
            assert!(page == marked(first >> 16), "part of page {}", first >> 16);
        }
    });
}
