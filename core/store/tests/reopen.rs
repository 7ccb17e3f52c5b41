//! Opening a store in memory that another one left behind.

use std::os::fd::{BorrowedFd, OwnedFd};

use proptest::prelude::*;
use spillway_store::{
    Backing, ClientConfig, Config, Dedup, Error, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Put,
    Refusal, Scratch, Store,
};
use spillway_test_support::random::noise;

const MIB: u64 = 1 << 20;
const UUID: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;

fn config(dedup: Dedup) -> Config {
    Config { backing: Backing::Memfd, dedup, ..Config::embedded(8 * MIB) }
}

fn copies(files: [BorrowedFd<'_>; 3]) -> [OwnedFd; 3] {
    files.map(|file| file.try_clone_to_owned().expect("duplicate"))
}

fn kept(store: &Store) -> [OwnedFd; 3] {
    copies(store.kept_descriptors().expect("memfds").map(|(_, file)| file))
}

/// Ends a store as a kill does, with nothing tidied up, and opens another in its memory.
fn again(store: Store, config: &Config) -> Store {
    let files = kept(&store);
    drop(store);
    Store::reopen(config.clone(), files).expect("reopen")
}

/// A value of any of the kinds of places that there are.
fn value(number: u64) -> Vec<u8> {
    match number % 8 {
        0 | 1 => noise(number, PAGE_BYTES),
        2 => (0..PAGE_BYTES).map(|at| (number as u8).wrapping_add((at / 100) as u8)).collect(),
        3 => vec![number as u8; PAGE_BYTES],
        4 => noise(7_u64, PAGE_BYTES),
        5 => noise(number, 1 + number as usize * 37 % 3000),
        6 => noise(number, 3900),
        _ => noise(number, 4097 + number as usize * 977 % 60_000),
    }
}

fn get(store: &Store, pool: PoolId, key: Key) -> Option<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    match store.get(pool, key, &mut value).expect("get") {
        Get::Hit(length) => {
            value.truncate(length);
            Some(value)
        }
        Get::Miss => None,
        Get::Short(length) => panic!("a value of {length} bytes"),
    }
}

/// What can be asked of a store, but for counters that begin anew.
fn levels(store: &Store) -> Vec<String> {
    let mut all = vec![format!("{} {}", store.same_filled_pages(), store.compressed_pages())];
    for client in store.clients() {
        let statistics = store.statistics(client.id).expect("statistics");
        let pools = store.pools(client.id).expect("pools");
        let (used, reserved) = (statistics.used_pages, statistics.reserved_pages);
        all.push(format!("{client:?} {used} {reserved} {pools:?}"));
        let mut keys = vec![Key::new(0, 0); 4096];
        for pool in pools {
            let count = store.list_keys(pool.id, None, &mut keys).expect("list");
            all.push(format!("{:?}", &keys[..count]));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reopened_store_is_the_same(
        steps in prop::collection::vec((0..4_usize, 0..4_u64, 0..150_u32, 0..60_u64), 1..300),
        demoted in 0..60_usize,
        dedup in prop_oneof![Just(Dedup::Off), Just(Dedup::PerClient)],
        times in 1..3_u8,
    ) {
        let config = config(dedup);
        let mut store = Store::open(config.clone()).expect("open");
        let clients = [1, 2].map(|label| {
            let domain = (dedup == Dedup::PerClient).then_some(5);
            let config = ClientConfig { label, domain, target_pages: 900 + label as u64 };
            store.add_client(config).expect("client")
        });
        clients.iter().for_each(|&client| store.authorise(client, UUID).expect("authorise"));
        let make = |client, spec| store.create_pool(client, spec).expect("pool");
        let pools = [
            make(clients[0], PoolSpec::PERSISTENT),
            make(clients[0], PoolSpec::shared_persistent(UUID)),
            make(clients[1], PoolSpec::shared_persistent(UUID)),
            store.create_reserved_pool(clients[1], PoolSpec::PERSISTENT, 150).expect("reserved"),
        ];
        let dropped = make(clients[1], PoolSpec::EPHEMERAL);
        let mut scratch = Scratch::new();
        for (at, object, index, number) in steps {
            let key = if at == 3 { Key::new(0, index) } else { Key::new(object, index * index) };
            let value = value(number);
            if number < 8 {
                store.flush(pools[at], key);
            } else if number == 8 {
                store.flush_object(pools[at], object);
            } else if number % 3 == 0 {
                let _: Put = store.put_compressed(pools[at], key, &value, &mut scratch);
            } else {
                let _: Put = store.put(pools[at], key, &value);
            }
            let _: Put = store.put(dropped, key, &value);
        }
        store.demote(demoted, &mut scratch);
        for object in 0..4 {
            store.flush_object(dropped, object);
        }
        prop_assert_eq!(store.list_keys(dropped, None, &mut [Key::new(0, 0)]).expect("list"), 0);
        let before = levels(&store);
        let mut values = Vec::new();
        let mut keys = vec![Key::new(0, 0); 4096];
        for pool in pools {
            let count = store.list_keys(pool, None, &mut keys).expect("list");
            values.extend(keys[..count].iter().map(|&key| (pool, key, get(&store, pool, key))));
        }
        store.freeze(clients[0]).expect("freeze");
        let memory = store.memory_bytes();
        for _ in 0..times {
            store = again(store, &config);
        }
        prop_assert_eq!(levels(&store), before);
        prop_assert!(store.memory_bytes() <= memory + MIB / 2);
        for (pool, key, value) in &values {
            prop_assert!(get(&store, *pool, *key) == *value, "{:?}", key);
        }
        // It works as before: what is there can be replaced and flushed, down to nothing.
        prop_assert_eq!(store.put(pools[3], Key::new(0, 149), b"thawed"), Put::Stored);
        store.demote(100, &mut scratch);
        for (pool, key, value) in &values {
            prop_assert!(*pool == pools[3] || get(&store, *pool, *key) == *value, "{:?}", key);
        }
        for (pool, key, _) in &values {
            store.flush(*pool, *key);
        }
        store.flush(pools[3], Key::new(0, 149));
        for client in clients {
            prop_assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
            store.remove_client(client).expect("remove");
        }
        prop_assert_eq!((store.same_filled_pages(), store.compressed_pages()), (0, 0));
        store.trim();
        prop_assert!(store.memory_bytes() < 3 * MIB / 2, "{} bytes are left", store.memory_bytes());
        let fresh = store.add_client(ClientConfig::default()).expect("client");
        prop_assert!(!clients.contains(&fresh), "ids are not given twice");
    }

    #[test]
    fn damaged_memory_gives_an_error_or_a_store_but_no_crash(
        steps in prop::collection::vec((0..3_u64, 0..150_u32, 0..60_u64), 1..120),
        damages in prop::collection::vec((0..3_usize, any::<u64>(), any::<u64>(), 0..4_u8), 1..12),
    ) {
        let config = config(Dedup::PerClient);
        let store = Store::open(config.clone()).expect("open");
        let client = store.add_client(ClientConfig::default()).expect("client");
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
        let reserved = store.create_reserved_pool(client, PoolSpec::PERSISTENT, 70).expect("pool");
        let mut scratch = Scratch::new();
        for (object, index, number) in steps {
            let value = value(number);
            let _: Put = store.put_compressed(pool, Key::new(object, index), &value, &mut scratch);
            let _: Put = store.put(reserved, Key::new(0, index % 70), &value);
        }
        let files = kept(&store);
        drop(store);
        for (file, at, word, kind) in damages {
            damage(&files[file], at, word, kind);
        }
        let copies = files.each_ref().map(|file| file.try_clone().expect("duplicate"));
        if let Ok(store) = Store::reopen(config.clone(), copies) {
            let mut keys = vec![Key::new(0, 0); 4096];
            for client in store.clients() {
                for pool in store.pools(client.id).expect("pools") {
                    let count = store.list_keys(pool.id, None, &mut keys).expect("list");
                    for key in &keys[..count] {
                        let _: Result<Get, Error> = store.get(pool.id, *key, &mut [0; 70_000]);
                    }
                }
                store.remove_client(client.id).expect("remove");
            }
            drop(store);
            Store::reopen(config, files).expect("an emptied store is whole");
        }
    }
}

/// The words of a file that are not zero, with their places.
fn words(file: &OwnedFd) -> Vec<(u64, u64)> {
    let mut words = Vec::new();
    let mut bytes = vec![0; 1 << 20];
    let mut offset = 0;
    while let Ok(data) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        let read = rustix::io::pread(file, &mut bytes, data).expect("read");
        if read == 0 {
            break;
        }
        let (all, _) = bytes[..read].as_chunks::<8>();
        let used = all.iter().enumerate().filter(|(_, word)| **word != [0; 8]);
        words
            .extend(used.map(|(place, word)| (data + 8 * place as u64, u64::from_ne_bytes(*word))));
        offset = data + read as u64;
    }
    words
}

/// Changes one of the words of a file that are not zero.
fn damage(file: &OwnedFd, at: u64, word: u64, kind: u8) {
    let words = words(file);
    if words.is_empty() {
        // Nothing was stored there yet.
        return;
    }
    let (place, before) = words[at as usize % words.len()];
    let after = match kind {
        0 => before ^ 1 << (word % 64),
        1 => before.wrapping_add(word % 9).wrapping_sub(4),
        2 => words[word as usize % words.len()].1,
        _ => word,
    };
    rustix::io::pwrite(file, &after.to_ne_bytes(), place).expect("write");
}

#[test]
fn which_pools_were_bound_is_kept() {
    let config = config(Dedup::Off);
    let store = Store::open(config.clone()).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    let pools = [(); 2].map(|()| store.create_pool(client, PoolSpec::PERSISTENT).unwrap());
    store.mark_bound(pools[1]).unwrap();
    let store = again(store, &config);
    assert_eq!(store.bound_pools(), [pools[1]]);
    store.destroy_pool(pools[1]).unwrap();
    assert!(store.bound_pools().is_empty() && store.mark_bound(pools[1]).is_err());
}

#[test]
fn a_store_that_has_nothing_yet_is_reopened() {
    let config = config(Dedup::Off);
    let store = again(Store::open(config.clone()).expect("open"), &config);
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    assert_eq!(store.put(pool, Key::new(1, 1), b"first"), Put::Stored);
    let store = again(store, &config);
    assert_eq!(get(&store, pool, Key::new(1, 1)), Some(b"first".to_vec()));
    assert_eq!(store.pools(client).expect("pools")[0].id, pool);
}

#[test]
fn membership_stays_and_permission_must_be_given_again() {
    let config = config(Dedup::Off);
    let store = Store::open(config.clone()).expect("open");
    let clients = [1, 2, 3].map(|label| {
        store.add_client(ClientConfig { label, ..ClientConfig::default() }).expect("client")
    });
    // In another order than that in which they came to the store.
    let [third, second, first] = clients;
    let members = [first, second, third].map(|member| {
        store.authorise(member, UUID).expect("authorise");
        store.create_pool(member, PoolSpec::shared_persistent(UUID)).expect("pool")
    });
    let [ours, theirs, _] = members;
    assert_eq!(store.put(theirs, Key::new(1, 1), b"shared"), Put::Stored);
    store.freeze(first).expect("freeze");
    let store = again(store, &config);
    assert_eq!(get(&store, ours, Key::new(1, 1)), Some(b"shared".to_vec()));
    assert_eq!(store.put(ours, Key::new(1, 2), b"thawed"), Put::Stored);
    assert!(matches!(store.join_pool(first, UUID), Err(Error::Unauthorised(UUID))));
    store.leave_pool(theirs).expect("leave");
    let used = |client| store.statistics(client).expect("statistics").used_pages;
    let bills = [first, second, third].map(used);
    assert_eq!(bills, [2, 0, 0], "the bill passes to who joined first of those that stay");
}

#[test]
fn ephemeral_values_are_gone_and_their_pools_go_on() {
    let config = config(Dedup::PerClient);
    let mut store = Store::open(config.clone()).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    store.authorise(client, UUID).expect("authorise");
    let specs = [PoolSpec::EPHEMERAL, PoolSpec::shared_ephemeral(UUID), PoolSpec::PERSISTENT];
    let pools = specs.map(|spec| store.create_pool(client, spec).expect("pool"));
    let keys: Vec<Key> = (0..200).map(|number| Key::new(number % 5, number as u32)).collect();
    for round in 0..2 {
        for (&key, number) in keys.iter().zip(round..) {
            for pool in pools {
                assert_eq!(store.put(pool, key, &value(number)), Put::Stored);
            }
        }
        store = again(store, &config);
        for (&key, number) in keys.iter().zip(round..) {
            assert!(!store.exists(pools[0], key) && !store.exists(pools[1], key), "{key:?}");
            assert_eq!(get(&store, pools[1], key), None);
            assert_eq!(get(&store, pools[2], key), Some(value(number)));
        }
        for pool in &pools[..2] {
            assert_eq!(store.list_keys(*pool, None, &mut [Key::new(0, 0)]).expect("list"), 0);
        }
    }
    let used = || store.statistics(client).expect("statistics").used_pages;
    let pages = |number| value(number).len().div_ceil(PAGE_BYTES) as u64;
    assert_eq!(used(), (1..=keys.len() as u64).map(pages).sum::<u64>());
    keys.iter().for_each(|&key| assert!(store.flush(pools[2], key)));
    assert_eq!(used(), 0);
}

#[test]
fn a_full_store_is_reopened_and_stays_within_its_capacity() {
    let config = config(Dedup::Off);
    let store = Store::open(config.clone()).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    // One page an object, so that the index is large and has to be given frames.
    let mut objects = 0;
    while store.put(pool, Key::new(objects, 100), &noise(objects, PAGE_BYTES)) == Put::Stored {
        objects += 1;
    }
    for object in (0..objects).step_by(7) {
        store.flush(pool, Key::new(object, 100));
    }
    let store = again(store, &config);
    assert!(store.memory_bytes() <= 8 * MIB + MIB / 4);
    for object in 0..objects {
        let expected = (object % 7 != 0).then(|| noise(object, PAGE_BYTES));
        assert!(get(&store, pool, Key::new(object, 100)) == expected, "object {object}");
    }
    let again = store.put(pool, Key::new(0, 100), &noise(1_u64, PAGE_BYTES));
    assert!(matches!(again, Put::Stored | Put::Refused(Refusal::NodeFull)));
}

#[test]
fn memory_of_another_store_is_refused_with_a_reason() {
    let config = config(Dedup::Off);
    let store = Store::open(config.clone()).expect("open");
    let why = |config: &Config, files| Store::reopen(config.clone(), files).expect_err("refused");
    let other = Config { capacity_bytes: 4096 * MIB, ..config.clone() };
    assert!(matches!(why(&other, kept(&store)), Error::Damaged(_)));
    let near = Config { capacity_bytes: 9 * MIB, ..config.clone() };
    assert!(matches!(why(&near, kept(&store)), Error::Config(_)));
    let [a, b, c] = kept(&store);
    assert!(matches!(why(&config, [b, a, c]), Error::Damaged(_)), "in another order");
    assert!(matches!(why(&Config::embedded(8 * MIB), kept(&store)), Error::Config(_)));
    let files = [(); 3].map(|()| OwnedFd::from(std::fs::File::open("/dev/null").expect("null")));
    assert!(matches!(why(&config, files), Error::Damaged(_)));
    assert!(Store::open(Config::embedded(MIB)).expect("open").kept_descriptors().is_none());
}

#[test]
fn the_memory_cannot_be_cut_under_the_store() {
    let store = Store::open(config(Dedup::Off)).expect("open");
    for (name, file) in store.kept_descriptors().expect("memfds") {
        assert!(rustix::fs::ftruncate(file, 0).is_err(), "{name}");
    }
}

#[test]
fn two_pages_of_a_reserved_pool_in_one_frame_are_damage() {
    let config = config(Dedup::Off);
    let store = Store::open(config.clone()).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_reserved_pool(client, PoolSpec::PERSISTENT, 64).expect("pool");
    let files = kept(&store);
    // Its leaf is there already, so a put makes one word of the index more: the slot.
    let [(_, first), (second, _)] = [1, 2].map(|number| {
        let before = words(&files[1]);
        let page = noise(number as u64, PAGE_BYTES);
        assert_eq!(store.put(pool, Key::new(0, number as u32), &page), Put::Stored);
        let new = |word: &(u64, u64)| !before.iter().any(|(place, _)| *place == word.0);
        let new: Vec<(u64, u64)> = words(&files[1]).into_iter().filter(new).collect();
        <[(u64, u64); 1]>::try_from(new).expect("one word")[0]
    });
    rustix::io::pwrite(&files[1], &first.to_ne_bytes(), second).expect("write");
    drop(store);
    assert!(matches!(Store::reopen(config, files), Err(Error::Damaged(_))));
}
