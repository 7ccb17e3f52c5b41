//! A store is whole after every single machine instruction.
//!
//! A child carries one operation out while this process makes it step by ptrace. Whenever a step has
//! changed the memory that is kept, a copy of it is reopened: each value must be the one from
//! before the operation or the one from after it, and all levels must fit the values.

mod traced;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use spillway_store::{
    Backing, ClientConfig, ClientId, Config, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Put, Scratch,
    Store,
};
use traced::{Image, copy, image};

const UUID: u128 = 17;

fn config() -> Config {
    Config { backing: Backing::Memfd, ..Config::embedded(4 << 20) }
}

fn page(seed: u8) -> Vec<u8> {
    (0..PAGE_BYTES).map(|at| ((at * at) >> 4) as u8 ^ (at >> 8) as u8 ^ seed).collect()
}

fn text(seed: u8) -> Vec<u8> {
    (0..PAGE_BYTES).map(|at| seed.wrapping_add((at / 100) as u8)).collect()
}

/// A store with a little of everything.
struct Setting {
    store: Store,
    clients: [ClientId; 2],
    private: PoolId,
    shared: [PoolId; 2],
    reserved: PoolId,
    /// Values that are put, made beforehand.
    page: Vec<u8>,
    long: Vec<u8>,
}

impl Setting {
    /// What was set up is found again by what it is.
    fn of(store: Store) -> Self {
        let clients = [1, 2].map(|label| {
            store.clients().iter().find(|c| c.config.label == label).expect("client").id
        });
        let find = |client, is: &dyn Fn(&spillway_store::PoolInfo) -> bool| {
            let pools = store.pools(client).expect("pools");
            pools.iter().find(|pool| is(pool)).expect("pool").id
        };
        let is_shared =
            |pool: &spillway_store::PoolInfo| pool.spec == PoolSpec::shared_persistent(UUID);
        Self {
            private: find(clients[0], &|p| !is_shared(p) && p.reserved_pages == 0),
            shared: clients.map(|client| find(client, &is_shared)),
            reserved: find(clients[0], &|p| p.reserved_pages != 0),
            page: page(7),
            long: page(8).repeat(2)[..4200].to_vec(),
            clients,
            store,
        }
    }

    fn new() -> Self {
        let store = Store::open(config()).expect("open");
        for label in [1, 2] {
            let config = ClientConfig { label, ..ClientConfig::default() };
            let client = store.add_client(config).expect("client");
            store.authorise(client, UUID).expect("authorise");
            store.create_pool(client, PoolSpec::shared_persistent(UUID)).expect("pool");
            if label == 1 {
                store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
                store.create_reserved_pool(client, PoolSpec::PERSISTENT, 3).expect("pool");
            }
        }
        let setting = Self::of(store);
        let put = |pool, key, value: &[u8]| {
            assert_eq!(setting.store.put(pool, key, value), Put::Stored);
        };
        put(setting.private, Key::new(1, 5), &page(1));
        put(setting.private, Key::new(1, 6), b"small");
        put(setting.private, Key::new(1, 70), &page(2));
        put(setting.private, Key::new(2, 9), &page(3).repeat(2)[..5000]);
        put(setting.private, Key::new(3, 3), &text(4));
        put(setting.shared[1], Key::new(1, 1), b"theirs");
        put(setting.shared[1], Key::new(1, 200), &page(5));
        put(setting.reserved, Key::new(0, 1), &page(6));
        setting
    }
}

type Step = (&'static str, fn(&Setting, &mut Scratch));

/// The operations that are gone through. Values are short where it is the index that counts.
const STEPS: [Step; 13] = [
    ("put into a new leaf and a new root", |s, _| {
        assert_eq!(s.store.put(s.private, Key::new(9, 900), b"new"), Put::Stored);
    }),
    ("put that widens a leaf", |s, _| {
        assert_eq!(s.store.put(s.private, Key::new(1, 60), b"wide"), Put::Stored);
    }),
    ("put in place of a page", |s, _| {
        assert_eq!(s.store.put(s.private, Key::new(1, 5), &s.page), Put::Stored);
    }),
    ("put of a long value", |s, _| {
        assert_eq!(s.store.put(s.private, Key::new(2, 8), &s.long), Put::Stored);
    }),
    ("put in place of a long value", |s, _| {
        assert_eq!(s.store.put(s.private, Key::new(2, 9), b"short"), Put::Stored);
    }),
    ("put into a reserved pool", |s, _| {
        assert_eq!(s.store.put(s.reserved, Key::new(0, 1), b"other"), Put::Stored);
    }),
    ("flush of the last value of a leaf and a root", |s, _| {
        assert!(s.store.flush(s.private, Key::new(1, 70)));
    }),
    ("flush of an object", |s, _| {
        assert_eq!(s.store.flush_object(s.private, 1), 3);
    }),
    ("packing", |s, scratch| {
        assert!(s.store.demote(1, scratch) <= 1);
    }),
    ("leaving a shared pool", |s, _| s.store.leave_pool(s.shared[1]).expect("leave")),
    ("removing a client", |s, _| s.store.remove_client(s.clients[0]).expect("remove")),
    ("making a pool", |s, _| {
        s.store.create_pool(s.clients[1], PoolSpec::PERSISTENT).expect("pool");
    }),
    ("making a client and a reserved pool", |s, _| {
        let client = s.store.add_client(ClientConfig::default()).expect("client");
        s.store.create_reserved_pool(client, PoolSpec::PERSISTENT, 70).expect("pool");
    }),
];

/// All values by the numbers of their pools.
type Values = BTreeMap<(u32, u64, u32), Vec<u8>>;

/// Reads all values, and checks that the levels fit them.
fn values_of(store: &Store) -> Values {
    let mut values = Values::new();
    let mut keys = vec![Key::new(0, 0); 64];
    let (mut used, mut billed) = (0, 0);
    for client in store.clients() {
        let statistics = store.statistics(client.id).expect("statistics");
        billed += statistics.used_pages;
        let pools = store.pools(client.id).expect("pools");
        let reserved: u64 = pools.iter().map(|pool| pool.reserved_pages).sum();
        assert_eq!(statistics.reserved_pages, reserved);
        for pool in pools {
            let count = store.list_keys(pool.id, None, &mut keys).expect("list");
            let mut pages = 0;
            for key in &keys[..count] {
                let mut value = vec![0; 9000];
                let got = store.get(pool.id, *key, &mut value).expect("get");
                let Get::Hit(length) = got else { panic!("{got:?} of {key:?}, which is listed") };
                value.truncate(length);
                pages += length.div_ceil(PAGE_BYTES) as u64;
                if values.insert((pool.number, key.object, key.index), value).is_none()
                    && pool.reserved_pages == 0
                {
                    used += length.div_ceil(PAGE_BYTES) as u64;
                }
            }
            assert_eq!(pool.pages, pages);
        }
    }
    assert_eq!(used, billed);
    values
}

fn kept(store: &Store) -> [OwnedFd; 3] {
    let files = store.kept_descriptors().expect("memfds");
    files.map(|(_, file)| file.try_clone_to_owned().expect("duplicate"))
}

fn reopen(files: &[OwnedFd; 3], images: &[Image]) -> Store {
    let copies = [0, 1, 2].map(|at| copy(&files[at], &images[at]));
    Store::reopen(config(), copies).expect("reopen")
}

#[test]
fn the_memory_makes_sense_after_every_instruction() {
    traced::each(STEPS.len(), |number| {
        let (name, step) = &STEPS[number];
        let setting = Setting::new();
        let files = kept(&setting.store);
        drop(setting);
        let start = files.each_ref().map(image);
        let before = values_of(&reopen(&files, &start));
        let done = Setting::of(reopen(&files, &start));
        step(&done, &mut Scratch::new());
        let after = values_of(&done.store);
        drop(done);
        let (steps, states) = traced::trace(&files, files.len(), number, |images| {
            let store = reopen(&files, images);
            for (key, value) in values_of(&store) {
                let known = [before.get(&key), after.get(&key)].contains(&Some(&value));
                assert!(known, "{name}: a strange value of {key:?}");
            }
            let numbers: Vec<u32> = (store.clients().iter())
                .flat_map(|client| store.pools(client.id).expect("pools"))
                .map(|pool| pool.number)
                .collect();
            let found = values_of(&store);
            for (key, value) in &before {
                let stays = after.get(key) == Some(value) && numbers.contains(&key.0);
                assert!(!stays || found.contains_key(key), "{name}: {key:?} is lost");
            }
            for client in store.clients() {
                let pool = store.create_pool(client.id, PoolSpec::PERSISTENT).expect("pool");
                assert_eq!(store.put(pool, Key::new(1, 1), b"works"), Put::Stored);
                store.destroy_pool(pool).expect("destroy");
            }
            assert_eq!(values_of(&store), found);
        });
        println!("{name}: {steps} instructions, {states} states of the memory");
        assert!(states > 1, "{name}");
        assert_eq!(values_of(&reopen(&files, &files.each_ref().map(image))), after, "{name}");
    });
}

/// The process that is stepped. Does nothing when it is run as a test.
#[test]
fn child() {
    let Some((number, files)) = traced::given() else { return };
    let files: [OwnedFd; 3] = files.try_into().expect("three files");
    let setting = Setting::of(Store::reopen(config(), files).expect("reopen"));
    let mut scratch = Scratch::new();
    traced::stepped(|| STEPS[number].1(&setting, &mut scratch));
}
