//! A store whose pages lie on disk is whole after every single machine instruction, as `steps.rs` has it
//! for memory alone: what is kept of the child, disk and all, is copied and reopened.

mod traced;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use spillway_store::{
    Backing, ClientConfig, ClientId, Config, DiskConfig, Get, Kept, Key, PAGE_BYTES, PageBuf,
    PoolId, PoolSpec, Put, Scratch, Store,
};
use traced::{Image, copy, copy_of_any, image};

const PAGES: u32 = 700;
/// What stays of them where there is to be room in memory.
const LEFT: u32 = 20;
/// Memory that has much room for these, and one for `PAGES` that is soon looked through.
const CAPACITY_BYTES: [u64; 2] = [2 << 20, 1 << 20];
/// Files that are memory: frames, index, tables and checksums. The disk comes last.
const WATCHED: usize = 4;

fn config(full: bool) -> Config {
    // Beside the test's own program, so that it is no tmpfs.
    let dir = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    let disk = Some(DiskConfig::new(dir, 4 << 20));
    Config {
        backing: Backing::Memfd,
        compress: false,
        disk,
        ..Config::embedded(CAPACITY_BYTES[usize::from(full)])
    }
}

/// Most of it is the same everywhere: a page is copied byte by byte, each of which could be another state.
fn page(seed: u32) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    page[..4].copy_from_slice(&seed.to_le_bytes());
    page[PAGE_BYTES - 4..].copy_from_slice(&(!seed).to_le_bytes());
    page
}

fn key(number: u32) -> Key {
    Key::new(u64::from(number / 4), number % 4)
}

/// Of the first pages put, which lie on disk.
fn at_disk(number: u32) -> Key {
    assert!(number < LEFT);
    key(number)
}

struct Setting {
    store: Store,
    client: ClientId,
    pool: PoolId,
}

impl Setting {
    fn of(store: Store) -> Self {
        let client = store.clients()[0].id;
        let pool = store.pools(client).expect("pools")[0].id;
        Self { store, client, pool }
    }

    /// The first pages on disk; memory full of the others, or nearly empty.
    fn new(full: bool) -> Self {
        let store = Store::open(config(full)).expect("open");
        let client = store.add_client(ClientConfig::default()).expect("client");
        store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
        let setting = Self::of(store);
        for number in 0..PAGES {
            assert_eq!(setting.store.put(setting.pool, key(number), &page(number)), Put::Stored);
        }
        let gone = if full { PAGES..PAGES } else { LEFT..PAGES };
        gone.for_each(|number| assert!(setting.store.flush(setting.pool, key(number))));
        setting
    }
}

type Step = (&'static str, bool, fn(&Setting, &mut Scratch));

/// The operations that are gone through, and whether memory is full.
const STEPS: [Step; 8] = [
    ("a page goes to the disk", true, |s, scratch| {
        assert_eq!(s.store.demote(1, scratch), 1);
    }),
    ("a page comes back to memory", false, |s, _| {
        let mut value = [0; PAGE_BYTES];
        let got = s.store.get(s.pool, at_disk(1), &mut value).expect("get");
        assert!(got == Get::Hit(PAGE_BYTES) && value[..] == page(1));
    }),
    ("a page is taken", false, |s, _| {
        let mut scratch = PageBuf::ZERO;
        let take = |at: usize, part: &[u8]| assert!(part == &page(2)[at..at + part.len()]);
        let got = s.store.take(s.pool, at_disk(2), PAGE_BYTES, &mut scratch, take);
        assert_eq!(got.expect("take"), Get::Hit(PAGE_BYTES));
    }),
    ("put in place of a page on disk", false, |s, _| {
        assert_eq!(s.store.put(s.pool, at_disk(3), &page(99)), Put::Stored);
    }),
    ("put of a short value in place of a page on disk", false, |s, _| {
        assert_eq!(s.store.put(s.pool, at_disk(3), b"short"), Put::Stored);
    }),
    ("flush of a page on disk", false, |s, _| assert!(s.store.flush(s.pool, at_disk(4)))),
    ("flush of an object on disk", false, |s, _| {
        assert_eq!(s.store.flush_object(s.pool, at_disk(8).object), 4);
    }),
    ("removing a client with pages on disk", false, |s, _| {
        s.store.remove_client(s.client).expect("remove");
    }),
];

type Values = BTreeMap<Key, Vec<u8>>;

/// Reads all values, and checks that the levels fit them.
fn values_of(store: &Store) -> Values {
    let mut values = Values::new();
    let mut keys = vec![Key::new(0, 0); PAGES as usize];
    for client in store.clients() {
        for pool in store.pools(client.id).expect("pools") {
            let count = store.list_keys(pool.id, None, &mut keys).expect("list");
            for key in &keys[..count] {
                let mut value = vec![0; PAGE_BYTES];
                let got = store.get(pool.id, *key, &mut value).expect("get");
                let Get::Hit(length) = got else { panic!("{got:?} of {key:?}, which is listed") };
                value.truncate(length);
                values.insert(*key, value);
            }
        }
        let used = store.statistics(client.id).expect("statistics").used_pages;
        assert_eq!(used, values.len() as u64);
    }
    values
}

/// The descriptors of a store, the disk by way of the kernel's cache, to look at it as at the others.
fn kept(store: &Store) -> Vec<OwnedFd> {
    let [(_, disk), (_, sums)] = store.kept_disk_descriptors().expect("disk");
    let path = format!("/proc/self/fd/{}", disk.as_raw_fd());
    let disk = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("disk");
    let memory = store.kept_descriptors().expect("memfds").map(|(_, file)| file);
    let memory = memory.into_iter().chain([sums]);
    let copies = memory.map(|file| file.try_clone_to_owned().expect("duplicate"));
    copies.chain([disk.into()]).collect()
}

fn store_of(files: Vec<OwnedFd>, full: bool) -> Store {
    let [frames, index, tables, sums, disk] = files.try_into().expect("five files");
    let kept = Kept { memory: [frames, index, tables], disk: Some([disk, sums]) };
    Store::reopen(config(full), kept).expect("reopen")
}

fn reopen(files: &[OwnedFd], images: &[Image], full: bool) -> Store {
    let mut copies: Vec<_> = files.iter().zip(images).map(|(f, image)| copy(f, image)).collect();
    // Of all these the disk alone grows.
    copies[WATCHED] = copy_of_any(&files[WATCHED], &images[WATCHED]);
    store_of(copies, full)
}

#[test]
fn memory_and_disk_make_sense_after_every_instruction() {
    traced::each(STEPS.len(), |number| {
        let (name, full, step) = &STEPS[number];
        let setting = Setting::new(*full);
        let files = kept(&setting.store);
        drop(setting);
        let images = || -> Vec<Image> { files.iter().map(image).collect() };
        let start = images();
        let before = values_of(&reopen(&files, &start, *full));
        let done = Setting::of(reopen(&files, &start, *full));
        step(&done, &mut Scratch::new());
        let after = values_of(&done.store);
        drop(done);
        let (steps, states) = traced::trace(&files, WATCHED, number, |images| {
            let store = reopen(&files, images, *full);
            let found = values_of(&store);
            for key in before.keys() {
                let (was, is, will) = (before.get(key), found.get(key), after.get(key));
                assert!(is == was || is == will, "{name}: a strange value of {key:?}");
            }
            assert!(found.keys().all(|key| before.contains_key(key)), "{name}: a new key");
            assert!(store.disk_bytes() / PAGE_BYTES as u64 <= found.len() as u64);
        });
        println!("{name}: {steps} instructions, {states} states of the memory");
        assert!(states > 1, "{name}");
        assert!(values_of(&reopen(&files, &images(), *full)) == after, "{name}");
    });
}

/// The process that is stepped. Does nothing when it is run as a test.
#[test]
fn child() {
    let Some((number, files)) = traced::given() else { return };
    let (_, full, step) = STEPS[number];
    let setting = Setting::of(store_of(files, full));
    let mut scratch = Scratch::new();
    traced::stepped(|| step(&setting, &mut scratch));
}
