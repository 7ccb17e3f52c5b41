//! Reserved pools, listing, and the other ways to get.

use std::collections::BTreeSet;

use proptest::prelude::*;
use spillway_store::{
    ClientConfig, ClientId, Config, Error, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Put, Refusal,
    Scratch, Store,
};
use spillway_test_support::pages::incompressible;

const MIB: u64 = 1 << 20;
const PAGES_PER_MIB: u64 = MIB / PAGE_BYTES as u64;

fn open(bytes: u64) -> (Store, ClientId) {
    let store = Store::open(Config::embedded(bytes)).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    (store, client)
}

fn get(store: &Store, pool: PoolId, key: Key) -> Option<Vec<u8>> {
    let mut value = vec![0; PAGE_BYTES];
    match store.get(pool, key, &mut value).expect("get") {
        Get::Hit(length) => Some(value[..length].to_vec()),
        Get::Miss => None,
        Get::Short(length) => panic!("a value of {length} bytes"),
    }
}

/// Fills what is left of the store with pages of a pool.
fn fill(store: &Store, pool: PoolId, object: u64) -> u32 {
    let mut index = 0;
    while store.put(pool, Key::new(object, index), &incompressible(index)) == Put::Stored {
        index += 1;
    }
    index
}

#[derive(Clone, Debug)]
enum Step {
    /// A page of a reserved pool is written.
    Write(usize, u32, u64),
    Flush(usize, u32),
    FlushAll(usize),
    /// The neighbour takes all that is left.
    Fill(u64),
    /// The neighbour gives all back.
    Empty,
    SetTarget(u64),
    Demote,
    Trim,
}

const PAGES: [u32; 2] = [300, 77];

fn any_step() -> impl Strategy<Value = Step> {
    let at = 0..2_usize;
    prop_oneof![
        12 => (at.clone(), 0..300_u32, 0..9_u64)
            .prop_map(|(at, index, seed)| Step::Write(at, index % PAGES[at], seed)),
        4 => (at.clone(), 0..300_u32).prop_map(|(at, index)| Step::Flush(at, index % PAGES[at])),
        1 => at.prop_map(Step::FlushAll),
        2 => (0..4_u64).prop_map(Step::Fill),
        1 => Just(Step::Empty),
        1 => (0..3_u64).prop_map(Step::SetTarget),
        1 => Just(Step::Demote),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_write_within_a_reservation_is_never_refused(
        steps in prop::collection::vec(any_step(), 1..150),
    ) {
        let (store, client) = open(6 * MIB);
        let neighbour = store.add_client(ClientConfig::default()).expect("client");
        let others = store.create_pool(neighbour, PoolSpec::PERSISTENT).expect("pool");
        let pools = PAGES.map(|pages| {
            let made = store.create_reserved_pool(client, PoolSpec::PERSISTENT, pages.into());
            made.expect("reserved")
        });
        let mut model = [vec![None; PAGES[0] as usize], vec![None; PAGES[1] as usize]];
        let mut scratch = Scratch::new();
        for step in steps {
            match step {
                Step::Write(at, index, seed) => {
                    let page = if seed == 0 { vec![7; PAGE_BYTES] } else { incompressible(seed).to_vec() };
                    let put = store.put(pools[at], Key::new(0, index), &page);
                    prop_assert_eq!(put, Put::Stored);
                    model[at][index as usize] = Some(page);
                }
                Step::Flush(at, index) => {
                    let flushed = store.flush(pools[at], Key::new(0, index));
                    prop_assert_eq!(flushed, model[at][index as usize].take().is_some());
                }
                Step::FlushAll(at) => {
                    let held = model[at].iter().flatten().count();
                    prop_assert_eq!(store.flush_object(pools[at], 0), held as u64);
                    model[at].fill(None);
                }
                Step::Fill(object) => {
                    fill(&store, others, object);
                }
                Step::Empty => (0..4).for_each(|object| {
                    store.flush_object(others, object);
                }),
                Step::SetTarget(pages) => store.set_target(client, pages).expect("target"),
                Step::Demote => {
                    store.demote(40, &mut scratch);
                }
                Step::Trim => store.trim(),
            }
            let infos = store.pools(client).expect("pools");
            for (at, info) in infos.iter().enumerate() {
                prop_assert_eq!(info.id, pools[at]);
                prop_assert_eq!(info.pages, model[at].iter().flatten().count() as u64);
                prop_assert_eq!(info.reserved_pages, PAGES[at].into());
            }
            let statistics = store.statistics(client).expect("statistics");
            prop_assert_eq!(statistics.used_pages, 0, "reserved pages are on no bill");
            prop_assert_eq!(statistics.reserved_pages, u64::from(PAGES[0] + PAGES[1]));
            prop_assert!(store.memory_bytes() <= 6 * MIB);
        }
        for (at, pool) in pools.into_iter().enumerate() {
            for (index, page) in model[at].iter().enumerate() {
                prop_assert_eq!(&get(&store, pool, Key::new(0, index as u32)), page);
            }
            store.destroy_pool(pool).expect("destroy");
        }
        prop_assert_eq!(store.statistics(client).expect("statistics").reserved_pages, 0);
        store.destroy_pool(others).expect("destroy");
        store.trim();
        prop_assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
    }

    #[test]
    fn a_listing_gives_each_key_once_in_one_order(
        keys in prop::collection::btree_set((0..5_u64, prop_oneof![0..300_u32, any::<u32>()]), 0..400),
        other in 0..200_u32,
        step in 2..70_usize,
        from in (0..5_u64, 0..300_u32),
    ) {
        let (store, client) = open(64 * MIB);
        let pools = [(); 2].map(|()| store.create_pool(client, PoolSpec::PERSISTENT).expect("pool"));
        for index in 0..other {
            prop_assert_eq!(store.put(pools[1], Key::new(1, index), b"other"), Put::Stored);
        }
        for &(object, index) in &keys {
            prop_assert_eq!(store.put(pools[0], Key::new(object, index), b"value"), Put::Stored);
        }
        let mut room = vec![Key::new(0, 0); step];
        let mut listed: Vec<Key> = Vec::new();
        let mut grown = 0;
        loop {
            let count = store.list_keys(pools[0], listed.last().copied(), &mut room).expect("list");
            let begin = usize::from(!listed.is_empty());
            prop_assert!(begin == 0 || room[0] == listed[listed.len() - 1], "a key that is there is first");
            listed.extend(&room[begin..count]);
            if count < step {
                break;
            }
            // The index grows meanwhile.
            for _ in 0..300 {
                grown += 1;
                prop_assert_eq!(store.put(pools[1], Key::new(grown, 0), b"more"), Put::Stored);
            }
        }
        let set: BTreeSet<_> = listed.iter().map(|key| (key.object, key.index)).collect();
        prop_assert_eq!(set.len(), listed.len(), "a key came twice");
        prop_assert_eq!(&set, &keys);
        // From a key that is not there: all that follow it wherever it would stand, and no others.
        let from = Key::new(from.0, from.1);
        let mut rest = vec![Key::new(0, 0); listed.len() + 1];
        let count = store.list_keys(pools[0], Some(from), &mut rest).expect("list");
        prop_assert_eq!(&rest[..count], &listed[listed.len() - count..]);
        prop_assert_eq!(store.put(pools[0], from, b"value"), Put::Stored);
        prop_assert!(store.list_keys(pools[0], Some(from), &mut rest).expect("list") > 0);
        prop_assert_eq!(rest[0], from);
    }
}

#[test]
fn reservations_share_the_capacity_with_all_else() {
    let (store, client) = open(8 * MIB);
    let make = |pages| store.create_reserved_pool(client, PoolSpec::PERSISTENT, pages);
    assert!(matches!(make(8 * PAGES_PER_MIB), Err(Error::NoRoom(_))), "index and frames together");
    let before = store.memory_bytes();
    let first = make(4 * PAGES_PER_MIB).expect("half");
    assert!(store.memory_bytes() - before > 4 * MIB);
    assert!(matches!(make(4 * PAGES_PER_MIB), Err(Error::NoRoom(_))));
    let after = store.memory_bytes();
    assert!(matches!(make(5 * PAGES_PER_MIB), Err(Error::NoRoom(_))));
    assert_eq!(store.memory_bytes(), after, "a failure takes nothing");
    // What is left is the others'; the reserved pages are not.
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    let others = fill(&store, pool, 1);
    assert!(u64::from(others) < 4 * PAGES_PER_MIB);
    store.destroy_pool(first).expect("destroy");
    assert!(u64::from(fill(&store, pool, 2)) > 7 * PAGES_PER_MIB / 2, "destroying frees it");
}

#[test]
fn memory_is_touched_by_writing_only_and_kept_for_the_pool() {
    let (store, client) = open(64 * MIB);
    let pool = store.create_reserved_pool(client, PoolSpec::PERSISTENT, 8000).expect("pool");
    let charged = store.memory_bytes();
    let idle = store.free_frame_bytes();
    assert!(idle >= 8000 * PAGE_BYTES as u64);
    for index in 0..8000 {
        assert_eq!(store.put(pool, Key::new(0, index), &incompressible(index)), Put::Stored);
    }
    assert_eq!(idle - store.free_frame_bytes(), 8000 * PAGE_BYTES as u64);
    assert_eq!(store.flush_object(pool, 0), 8000);
    assert_eq!((store.memory_bytes(), store.free_frame_bytes()), (charged, idle));
}

#[test]
fn a_reserved_pool_takes_its_pages_only() {
    let (store, client) = open(4 * MIB);
    let make = |spec, pages| store.create_reserved_pool(client, spec, pages);
    assert!(matches!(make(PoolSpec::EPHEMERAL, 1), Err(Error::Unreservable)));
    assert!(matches!(make(PoolSpec::shared_persistent(1), 1), Err(Error::Unreservable)));
    assert!(matches!(make(PoolSpec::PERSISTENT, 0), Err(Error::Unreservable)));
    assert!(matches!(make(PoolSpec::PERSISTENT, u64::MAX), Err(Error::NoRoom(_))));
    let pool = make(PoolSpec::PERSISTENT, 10).expect("pool");
    store.set_target(client, 0).expect("target");
    assert_eq!(store.put(pool, Key::new(0, 9), b"short"), Put::Stored);
    assert_eq!(get(&store, pool, Key::new(0, 9)), Some(b"short".to_vec()));
    for beyond in [Key::new(0, 10), Key::new(1, 0), Key::new(1 << 32, 0)] {
        assert_eq!(store.put(pool, beyond, b"x"), Put::Refused(Refusal::AtTarget));
    }
    let long = vec![1; PAGE_BYTES + 1];
    assert_eq!(store.put(pool, Key::new(0, 9), &long), Put::Refused(Refusal::Length));
    assert_eq!(get(&store, pool, Key::new(0, 9)), None, "P2");
}

#[test]
fn many_writers_and_readers_do_not_exhaust_a_small_reservation() {
    let (store, client) = open(2 * MIB);
    let pool = store.create_reserved_pool(client, PoolSpec::PERSISTENT, 3).expect("pool");
    let others = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    fill(&store, others, 1);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..2000 {
                    let key = Key::new(0, (round % 3) as u32);
                    assert_eq!(
                        store.put(pool, key, &incompressible(thread << 32 | round)),
                        Put::Stored
                    );
                    assert!(get(store, pool, key).is_some());
                }
            });
        }
    });
}

#[test]
fn numbers_stay_and_come_back_late() {
    let (store, client) = open(MIB);
    let make = || store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    let (first, second) = (make(), make());
    let numbers = || -> Vec<u32> {
        store.pools(client).expect("pools").iter().map(|pool| pool.number).collect()
    };
    assert_eq!(numbers(), [1, 2]);
    store.destroy_pool(first).expect("destroy");
    let third = make();
    assert_eq!(numbers(), [2, 3]);
    let ids: Vec<PoolId> = store.pools(client).expect("pools").iter().map(|pool| pool.id).collect();
    assert_eq!(ids, [second, third]);
}
