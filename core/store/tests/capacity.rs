//! A capacity that is raised by what others lend, and lowered again when they want it back.

use std::time::{Duration, Instant};

use spillway_store::{
    Backing, ClientConfig, ClientId, Config, DiskConfig, Error, Get, Kept, Key, PAGE_BYTES, PoolId,
    PoolSpec, Put, Scratch, Store,
};
use spillway_test_support::pages::compressible;
use spillway_test_support::wait::soon;

const MIB: u64 = 1 << 20;
const OWN: u64 = 8 * MIB;
const MOST: u64 = 32 * MIB;

fn config(disk_bytes: u64, compress: bool) -> Config {
    // Beside the test's own program, so that it is no tmpfs.
    let dir = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    let disk = (disk_bytes > 0).then(|| DiskConfig::new(dir, disk_bytes));
    let backing = Backing::Memfd;
    Config { backing, compress, makes_room: true, disk, ..Config::embedded(MOST) }
}

struct Opened {
    store: Store,
    client: ClientId,
    kept: PoolId,
    dropped: PoolId,
}

fn open(disk_bytes: u64, compress: bool) -> Opened {
    let store = Store::open(config(disk_bytes, compress)).expect("open");
    store.set_capacity(OWN, 0);
    let client = store.add_client(ClientConfig::default()).expect("client");
    let kept = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    let dropped = store.create_pool(client, PoolSpec::EPHEMERAL).expect("pool");
    Opened { store, client, kept, dropped }
}

/// A page that packs to about half, another for each number.
fn page(number: u64) -> [u8; PAGE_BYTES] {
    compressible(number, PAGE_BYTES / 2)
}

fn key(number: u64) -> Key {
    Key::new(number / 64, number as u32 % 64)
}

/// Puts pages from 0 on until one is refused, or `most` are there. How many there are.
fn fill(store: &Store, pool: PoolId, most: u64) -> u64 {
    (0..most).take_while(|&n| store.put(pool, key(n), &page(n)) == Put::Stored).count() as u64
}

fn assert_all(store: &Store, pool: PoolId, count: u64) {
    let mut value = [0; PAGE_BYTES];
    for number in 0..count {
        let got = store.get(pool, key(number), &mut value).expect("get");
        assert!(got == Get::Hit(PAGE_BYTES) && value == page(number), "page {number}: {got:?}");
    }
}

/// What the memfd of the frames takes of the host.
fn frames_bytes(store: &Store) -> u64 {
    let [(name, file), ..] = store.kept_descriptors().expect("memfds");
    assert_eq!(name, "frames");
    let file = std::fs::File::from(file.try_clone_to_owned().expect("duplicate"));
    std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("stat")) * 512
}

#[test]
fn what_is_lent_is_filled_and_given_back_with_all_pages_still_there() {
    for compress in [false, true] {
        let Opened { store, kept, .. } = open(64 * MIB, compress);
        assert_eq!(store.capacity_bytes(), OWN);
        store.set_capacity(OWN, MOST - OWN);
        assert_eq!(store.capacity_bytes(), MOST);
        // Of 28 MiB, more lies in memory than the store has of its own, even packed.
        let count = fill(&store, kept, 28 * 256);
        assert_eq!(count, 28 * 256);
        let before = store.memory_bytes();
        assert!(before > OWN + 4 * MIB, "{before}");
        let mut scratch = Scratch::new();
        if compress {
            // More than the store's own is packed: what is packed has to leave, too.
            while store.compressed_pages() < 6000 && store.demote(1000, &mut scratch) > 0 {}
            assert!(store.compressed_pages() >= 6000, "{}", store.compressed_pages());
        }
        store.set_capacity(OWN, 0);
        assert!(!store.shrink(Instant::now(), &mut scratch), "that takes longer");
        assert!(store.shrink(soon(), &mut scratch));
        assert!(store.memory_bytes() <= OWN, "{}", store.memory_bytes());
        // A huge page is allotted as a whole, with chunks that nobody has taken yet.
        let bytes = frames_bytes(&store);
        assert!(bytes <= OWN + 2 * MIB, "the host has it: {bytes}");
        assert_all(&store, kept, count);
        // And again, from what lies in pieces.
        store.set_capacity(OWN, MOST - OWN);
        assert_eq!(fill(&store, kept, 28 * 256), 28 * 256);
        assert_all(&store, kept, count);
        store.set_capacity(OWN, 2 * MIB);
        assert!(store.shrink(soon(), &mut scratch));
        let bytes = store.memory_bytes();
        assert!((OWN + MIB..=OWN + 2 * MIB).contains(&bytes), "no more goes than has to: {bytes}");
        assert_all(&store, kept, count);
    }
}

#[test]
fn no_page_goes_to_the_disk_while_there_are_values_that_may_be_dropped() {
    let Opened { store, client, kept, dropped } = open(64 * MIB, false);
    store.set_capacity(OWN, MOST - OWN);
    let stays = fill(&store, kept, 1000);
    for number in 0..2500 {
        assert_eq!(store.put(dropped, key(number), &page(number)), Put::Stored);
    }
    store.set_capacity(OWN, 0);
    assert!(store.shrink(soon(), &mut Scratch::new()));
    assert_eq!(store.disk_counters().expect("disk").pages, 0);
    let left = store.statistics(client).expect("client").used_pages - stays;
    assert!(left > 500, "{left}: more were dropped than had to be");
    // When they are not enough, the rest goes there.
    store.set_capacity(2 * MIB, 0);
    assert!(store.shrink(soon(), &mut Scratch::new()));
    assert!(store.disk_counters().expect("disk").pages > 0);
    assert_eq!(store.statistics(client).expect("client").used_pages, stays);
    assert_all(&store, kept, stays);
}

#[test]
fn ephemeral_values_go_first_and_persistent_ones_that_can_go_nowhere_stay() {
    let Opened { store, client, kept, dropped } = open(0, false);
    store.set_capacity(OWN, MOST - OWN);
    let stays = fill(&store, kept, 1000);
    for number in 0..2500 {
        assert_eq!(store.put(dropped, key(number), &page(number)), Put::Stored);
    }
    let long = vec![7; 100_000];
    for number in 10_000..10_040 {
        assert_eq!(store.put(dropped, key(number), &long), Put::Stored);
    }
    let bytes = store.memory_bytes();
    assert!(bytes > 2 * OWN, "{bytes}");
    store.set_capacity(OWN, 0);
    assert!(store.shrink(soon(), &mut Scratch::new()));
    assert!(store.memory_bytes() <= OWN);
    assert_all(&store, kept, stays);
    // As much as goes at once: not all that could have gone.
    let left = store.statistics(client).expect("client").used_pages - stays;
    assert!(left > 500, "{left}");
    // Less than what is there: nothing is lost, and it is said.
    store.set_capacity(2 * MIB, 0);
    assert!(!store.shrink(soon(), &mut Scratch::new()));
    assert_all(&store, kept, stays);
    let left = store.statistics(client).expect("client").used_pages;
    assert_eq!(left, stays, "all that is ephemeral has gone");
    assert!(matches!(store.put(kept, key(5000), &page(5000)), Put::Refused(_)));
}

#[test]
fn what_could_go_nowhere_is_counted() {
    let pages = |store: &Store| store.fixed_bytes() / PAGE_BYTES as u64;
    let Opened { store, client, kept, dropped } = open(MIB, false);
    assert_eq!(pages(&store), 0);
    for number in 0..256 {
        assert_eq!(store.put(kept, key(number), &page(number)), Put::Stored);
        assert_eq!(store.put(dropped, key(number), &page(number)), Put::Stored);
    }
    assert_eq!(pages(&store), 0, "the disk takes as much");
    for number in 256..300 {
        assert_eq!(store.put(kept, key(number), &page(number)), Put::Stored);
    }
    assert_eq!(pages(&store), 44, "of these it has no room for the last");
    assert_eq!(store.put(kept, key(1000), b"short"), Put::Stored);
    assert_eq!(store.put(kept, key(1001), &[7; 10 * PAGE_BYTES]), Put::Stored);
    assert_eq!(store.put(dropped, key(1001), &[7; 10 * PAGE_BYTES]), Put::Stored);
    assert_eq!(
        store.fixed_bytes(),
        (44 + 10) * PAGE_BYTES as u64 + 64,
        "what is not a page has a header"
    );
    assert_eq!(store.put(kept, key(1002), &[7; 4000]), Put::Stored);
    assert_eq!(store.fixed_bytes(), (44 + 11) * PAGE_BYTES as u64 + 64, "or a frame");
    assert!(store.flush(kept, key(1002)));
    store.create_reserved_pool(client, PoolSpec::PERSISTENT, 100).expect("room");
    assert_eq!((pages(&store), store.reserved_bytes()), (44 + 10, 100 * PAGE_BYTES as u64));
    // What lies on the disk already takes no memory, and leaves less room there.
    store.set_capacity(MIB, 0);
    assert!(!store.shrink(soon(), &mut Scratch::new()));
    assert_eq!(pages(&store), 44 + 10);
}

#[test]
fn what_could_go_nowhere_is_counted_in_each_of_many_objects() {
    let Opened { store, kept, .. } = open(0, false);
    store.set_capacity(OWN, MOST - OWN);
    // Each has a leaf of the index of its own: some 380 in each part of it.
    const OBJECTS: u64 = 12_000;
    for object in 0..OBJECTS {
        assert_eq!(store.put(kept, Key::new(object, 0), b"x"), Put::Stored);
    }
    // The shortest cells are 64 bytes long.
    assert_eq!(store.fixed_bytes(), OBJECTS * 64);
}

#[test]
fn a_disk_has_room_for_what_is_not_there_any_more_however_much_was_written() {
    let Opened { store, kept, .. } = open(4 * MIB, false);
    let pages = 4 * 256;
    for _ in 0..3 {
        assert_eq!(fill(&store, kept, pages), pages);
        assert_eq!(store.fixed_bytes(), 0);
        store.set_capacity(MIB, 0);
        assert!(store.shrink(soon(), &mut Scratch::new()));
        (0..pages).for_each(|number| assert!(store.flush(kept, key(number))));
        store.set_capacity(OWN, 0);
    }
    let disk = store.disk_counters().expect("disk");
    assert!(disk.written_pages > disk.capacity_pages, "{disk:?}");
}

#[test]
fn pages_that_share_a_frame_count_as_fixed_and_keep_no_others() {
    let config = Config { dedup: spillway_store::Dedup::PerClient, ..config(64 * MIB, false) };
    let store = Store::open(config).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let kept = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    // The oldest 2000 entries have 1000 frames.
    for number in 0..2000 {
        assert_eq!(store.put(kept, key(number), &page(number / 2)), Put::Stored);
    }
    for number in 2000..6000 {
        assert_eq!(store.put(kept, key(number), &page(number)), Put::Stored);
    }
    assert_eq!(store.fixed_bytes() / PAGE_BYTES as u64, 2000, "one for each entry");
    store.set_capacity(OWN, 0);
    assert!(store.shrink(soon(), &mut Scratch::new()));
    assert!(store.memory_bytes() <= OWN);
    let mut value = [0; PAGE_BYTES];
    for number in 0..6000 {
        assert_eq!(store.get(kept, key(number), &mut value).expect("get"), Get::Hit(PAGE_BYTES));
        assert!(value == page(if number < 2000 { number / 2 } else { number }), "{number}");
    }
}

#[test]
fn a_little_comes_back_from_behind_many_pages_that_stay() {
    let config = Config { dedup: spillway_store::Dedup::PerClient, ..config(64 * MIB, false) };
    let store = Store::open(config).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let kept = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    // The oldest 6000 entries have 3000 frames, which can't leave.
    for number in 0..6000 {
        assert_eq!(store.put(kept, key(number), &page(number / 2)), Put::Stored);
    }
    for number in 6000..8000 {
        assert_eq!(store.put(kept, key(number), &page(number)), Put::Stored);
    }
    store.set_capacity(store.memory_bytes() - MIB, 0);
    assert!(store.shrink(soon(), &mut Scratch::new()));
    assert!(store.memory_bytes() <= store.capacity_bytes());
}

#[test]
fn a_client_s_share_is_of_the_capacity_of_now() {
    let Opened { store, dropped, .. } = open(0, false);
    let other = store.add_client(ClientConfig::default()).expect("client");
    let of_other = store.create_pool(other, PoolSpec::EPHEMERAL).expect("pool");
    // The other one's values are the coldest, and much less than half.
    for number in 0..256 {
        assert_eq!(store.put(of_other, key(number), &page(number)), Put::Stored);
    }
    for number in 0..2 * OWN / PAGE_BYTES as u64 {
        assert_eq!(store.put(dropped, key(number), &page(number)), Put::Stored);
    }
    let left = store.statistics(other).expect("client").used_pages;
    assert_eq!(left, 256, "whoever holds more than an equal part of {OWN} bytes drops its own");
}

#[test]
fn a_disk_that_fails_has_room_for_nothing() {
    let mut config = config(64 * MIB, false);
    let (deadline, delay_ns) = (Duration::from_millis(50), 500_000_000);
    config.disk = config.disk.map(|disk| DiskConfig { deadline, delay_ns, ..disk });
    let store = Store::open(config).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let kept = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    assert_eq!(fill(&store, kept, 1000), 1000);
    assert_eq!(store.fixed_bytes(), 0);
    store.set_capacity(2 * MIB, 0);
    assert!(!store.shrink(Instant::now() + Duration::from_secs(2), &mut Scratch::new()));
    assert_ne!(store.disk_counters().expect("disk").trouble, None);
    let fixed = store.fixed_bytes() / PAGE_BYTES as u64;
    assert!((900..=1000).contains(&fixed), "{fixed}");
}

#[test]
fn what_is_much_room_is_measured_by_the_capacity_of_now() {
    let Opened { store, kept, .. } = open(64 * MIB, false);
    store.set_capacity(OWN, MOST - OWN);
    let count = fill(&store, kept, 24 * 256);
    store.set_capacity(OWN, 0);
    assert!(store.shrink(soon(), &mut Scratch::new()));
    // The youngest are in memory. A sixteenth of all that there could ever be would be 512 pages.
    (count - 400..count).for_each(|number| assert!(store.flush(kept, key(number))));
    let reads = || store.disk_counters().expect("disk").read_pages;
    let mut value = [0; PAGE_BYTES];
    for _ in 0..2 {
        assert_eq!(store.get(kept, key(0), &mut value).expect("get"), Get::Hit(PAGE_BYTES));
    }
    assert_eq!(reads(), 1, "it has come back to memory");
}

#[test]
fn pools_with_room_set_aside_get_none_of_what_is_lent() {
    let Opened { store, client, .. } = open(0, false);
    store.set_capacity(OWN, MOST - OWN);
    let make = |pages| store.create_reserved_pool(client, PoolSpec::PERSISTENT, pages);
    assert!(matches!(make(OWN / PAGE_BYTES as u64 + 1), Err(Error::NoRoom(_))));
    make(1024).expect("half of its own");
    assert!(matches!(make(1025), Err(Error::NoRoom(_))));
    make(1000).expect("nearly all of its own");
    store.set_capacity(MOST, 0);
    make(2000).expect("it has more of its own");
}

#[test]
fn a_store_that_is_opened_again_holds_what_was_lent_until_it_is_shrunk() {
    let config = config(64 * MIB, false);
    let Opened { store, kept, .. } = open(64 * MIB, false);
    store.set_capacity(OWN, MOST - OWN);
    let count = fill(&store, kept, 24 * 256);
    let copy = |file: std::os::fd::BorrowedFd<'_>| file.try_clone_to_owned().expect("duplicate");
    let memory = store.kept_descriptors().expect("memfds").map(|(_, file)| copy(file));
    let disk = store.kept_disk_descriptors().map(|disk| disk.map(|(_, file)| copy(file)));
    drop(store);
    let store = Store::reopen(config, Kept { memory, disk }).expect("reopen");
    store.set_capacity(OWN, 0);
    assert!(store.memory_bytes() > OWN);
    assert!(store.shrink(soon(), &mut Scratch::new()));
    assert!(store.memory_bytes() <= OWN);
    assert_all(&store, kept, count);
}

#[test]
fn it_shrinks_while_others_put_and_get() {
    let Opened { store, kept, .. } = open(128 * MIB, true);
    store.set_capacity(OWN, MOST - OWN);
    let count = fill(&store, kept, 24 * 256);
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|of| {
            let store = &store;
            scope.spawn(move || {
                for round in 0..3 {
                    for number in (of..count).step_by(2) {
                        // A moment without room is no mistake: the value is as it was, or gone.
                        let _ = store.put(kept, key(number), &page(number));
                        let mut value = [0; PAGE_BYTES];
                        let got = store.get(kept, key(number), &mut value).expect("get");
                        assert!(got == Get::Miss || value == page(number), "round {round}");
                    }
                }
            })
        });
        for lent in [0, MOST - OWN, 4 * MIB, 0] {
            store.set_capacity(OWN, lent);
            assert!(store.shrink(soon(), &mut Scratch::new()), "{lent}");
        }
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    });
    assert!(store.memory_bytes() <= OWN, "{}", store.memory_bytes());
}

#[test]
fn several_drop_values_of_all_lengths_at_the_same_time() {
    let Opened { store, dropped, .. } = open(0, false);
    let (long, longer) = (vec![7; 20_000], vec![8; 1 << 20]);
    for round in 0..12_u64 {
        store.set_capacity(OWN, MOST - OWN);
        for number in 0..20_000 {
            let _ =
                store.put(dropped, key(number), &number.to_le_bytes()[..1 + number as usize % 8]);
        }
        for number in 20_000..20_400 {
            let value = if number % 40 == 0 { &longer } else { &long };
            let _ = store.put(dropped, key(number + round), value);
        }
        store.set_capacity(2 * MIB, 0);
        std::thread::scope(|scope| {
            let shrinkers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| store.shrink(soon(), &mut Scratch::new()))).collect();
            for shrinker in shrinkers {
                // One may end while the others have what is left.
                shrinker.join().expect("it has ended");
            }
        });
        assert!(store.memory_bytes() <= 2 * MIB);
    }
}
