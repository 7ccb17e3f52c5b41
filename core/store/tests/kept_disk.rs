//! The disk of a store in memfds: what lies there survives the process, and is right or an error.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use spillway_store::{
    Backing, ClientConfig, ClientId, Config, DiskConfig, DiskError, DiskTrouble, Error, Get, Kept,
    Key, PAGE_BYTES, PageBuf, PoolId, PoolSpec, Put, Refusal, Scratch, Store,
};
use spillway_test_support::pages::incompressible;

const MIB: u64 = 1 << 20;

fn config(disk_bytes: u64) -> Config {
    // Beside the test's own program, so that it is no tmpfs.
    let dir = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    Config {
        backing: Backing::Memfd,
        compress: false,
        disk: Some(DiskConfig::new(dir, disk_bytes)),
        ..Config::embedded(4 * MIB)
    }
}

fn key(number: u64) -> Key {
    Key::new(number / 64, number as u32 % 64)
}

fn open(config: &Config) -> (Store, ClientId, PoolId) {
    let store = Store::open(config.clone()).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    (store, client, pool)
}

fn kept(store: &Store) -> Kept {
    let copy = |file: std::os::fd::BorrowedFd<'_>| file.try_clone_to_owned().expect("duplicate");
    let memory = store.kept_descriptors().expect("memfds").map(|(_, file)| copy(file));
    let disk = store.kept_disk_descriptors().map(|disk| disk.map(|(_, file)| copy(file)));
    Kept { memory, disk }
}

/// Ends a store as a kill does, with nothing tidied up, and opens another with what was kept.
fn again(store: Store, config: &Config) -> Store {
    let kept = kept(&store);
    drop(store);
    Store::reopen(config.clone(), kept).expect("reopen")
}

fn get(store: &Store, pool: PoolId, number: u64) -> Result<bool, Error> {
    let mut value = [0; PAGE_BYTES];
    let got = store.get(pool, key(number), &mut value)?;
    assert!(matches!(got, Get::Hit(PAGE_BYTES) | Get::Miss), "{got:?}");
    assert!(got == Get::Miss || value == incompressible(number), "page {number} is another");
    Ok(got != Get::Miss)
}

#[test]
fn four_times_the_memory_goes_to_disk_and_outlives_the_process() {
    let config = config(64 * MIB);
    let (mut store, client, pool) = open(&config);
    let pages = 4096;
    for number in 0..pages {
        assert_eq!(
            store.put(pool, key(number), &incompressible(number)),
            Put::Stored,
            "page {number}"
        );
    }
    let counters = store.disk_counters().expect("disk");
    assert!(counters.pages > 3000 && counters.written_pages >= counters.pages, "{counters:?}");
    assert_eq!(store.disk_bytes(), counters.pages * PAGE_BYTES as u64);
    for round in 0..3 {
        for number in 0..pages {
            let there = number >= 500 || number >= round * 200;
            assert_eq!(get(&store, pool, number).expect("get"), there, "page {number}");
        }
        for number in round * 200..(round * 200 + 200).min(500) {
            assert!(store.flush(pool, key(number)));
        }
        let on_disk = store.disk_bytes();
        store = again(store, &config);
        assert_eq!(store.disk_bytes(), on_disk);
        assert_eq!(
            store.pools(client).expect("pools")[0].pages,
            store.statistics(client).expect("statistics").used_pages
        );
    }
    // Other pages take the place of those on disk.
    for number in 500..pages {
        assert_eq!(store.put(pool, key(number), &incompressible(number ^ 1)), Put::Stored);
    }
    store = again(store, &config);
    for number in 500..pages {
        let mut value = [0; PAGE_BYTES];
        assert_eq!(store.get(pool, key(number), &mut value).expect("get"), Get::Hit(PAGE_BYTES));
        assert!(value == incompressible(number ^ 1), "page {number}");
    }
    store.remove_client(client).expect("remove");
    assert_eq!(store.disk_bytes(), 0);
    store.trim();
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
}

#[test]
fn pages_come_back_to_memory_when_there_is_room() {
    let config = config(64 * MIB);
    let (store, _, pool) = open(&config);
    for number in 0..4096 {
        assert_eq!(store.put(pool, key(number), &incompressible(number)), Put::Stored);
    }
    // The oldest lie on disk: the youngest go, so that there is room for them.
    for number in 3000..4096 {
        store.flush(pool, key(number));
    }
    let before = store.disk_counters().expect("disk");
    for _ in 0..2 {
        for number in 0..200 {
            assert!(get(&store, pool, number).expect("get"));
        }
    }
    let after = store.disk_counters().expect("disk");
    assert_eq!(after.read_pages - before.read_pages, 200, "the second time they are in memory");
    assert_eq!(before.pages - after.pages, 200);
    // They leave it again for those that come later.
    for number in 5000..11_000 {
        assert_eq!(store.put(pool, key(number), &incompressible(number)), Put::Stored);
    }
    let before = store.disk_counters().expect("disk");
    for number in 0..200 {
        assert!(get(&store, pool, number).expect("get"));
    }
    let after = store.disk_counters().expect("disk");
    assert_eq!(after.read_pages - before.read_pages, 200);
}

/// Changes a page of the file that holds `wanted`.
fn corrupt(file: &OwnedFd, wanted: &[u8; PAGE_BYTES]) {
    let mut page = PageBuf::ZERO;
    let mut at = 0;
    loop {
        assert_eq!(rustix::io::pread(file, &mut page.0, at).expect("read"), PAGE_BYTES);
        if page.0 == *wanted {
            break;
        }
        at += PAGE_BYTES as u64;
    }
    page.0[77] ^= 4;
    assert_eq!(rustix::io::pwrite(file, &page.0, at).expect("write"), PAGE_BYTES);
}

#[test]
fn corrupt_bytes_are_an_error_and_the_rest_goes_on() {
    let config = config(64 * MIB);
    let (store, _, pool) = open(&config);
    for number in 0..2048 {
        assert_eq!(store.put(pool, key(number), &incompressible(number)), Put::Stored);
    }
    let [file, _] = kept(&store).disk.expect("disk");
    corrupt(&file, &incompressible(3_u64));
    let store = again(store, &config);
    assert!(matches!(get(&store, pool, 3), Err(Error::Corrupt)));
    let mut scratch = PageBuf::ZERO;
    assert!(matches!(store.read_page(pool, key(3), &mut scratch), Err(Error::Corrupt)));
    let took = store.take(pool, key(3), PAGE_BYTES, &mut scratch, |_, _| panic!("wrong bytes"));
    assert!(matches!(took, Err(Error::Corrupt)));
    let disk = store.disk_counters().expect("disk");
    assert_eq!((disk.corrupt_pages, disk.trouble), (3, None));
    let last_error = disk.last_error;
    assert!(matches!(last_error, Some((DiskError::Corrupt, _))), "{last_error:?}");
    let exported = store.export(pool, |key, _| assert_ne!(key, self::key(3)));
    assert!(matches!(exported, Err(Error::Corrupt)), "{exported:?}");
    for number in (0..2048).filter(|&number| number != 3) {
        assert!(get(&store, pool, number).expect("get"));
    }
    assert_eq!(store.put(pool, key(3), &incompressible(3_u64)), Put::Stored);
    assert!(get(&store, pool, 3).expect("get"));
    let disk = store.disk_counters().expect("disk");
    assert!(
        matches!(disk.last_error, Some((DiskError::Corrupt, _))),
        "it stays, though the disk works"
    );
    // A file that was cut loses pages, and says so.
    rustix::fs::ftruncate(&file, 0).expect("cut");
    let lost = (0..2048).filter(|&number| get(&store, pool, number).is_err()).count();
    assert!(lost > 500, "{lost}");
}

#[test]
fn a_full_disk_refuses_and_takes_again_when_there_is_room() {
    let config = config(4 * MIB);
    let (store, _, pool) = open(&config);
    let stored = (0..4096)
        .take_while(|&n| store.put(pool, key(n), &incompressible(n)) == Put::Stored)
        .count() as u64;
    assert!((1500..2048).contains(&stored), "{stored} pages in 4 MiB of memory and 4 MiB of disk");
    assert_eq!(store.put(pool, key(5000), &incompressible(1_u64)), Put::Refused(Refusal::NodeFull));
    let counters = store.disk_counters().expect("disk");
    assert_eq!(counters.trouble, Some(DiskTrouble::Full));
    assert!((900..=1024).contains(&counters.pages), "{counters:?}");
    for number in 0..stored {
        assert!(get(&store, pool, number).expect("get"));
    }
    for number in 0..400 {
        assert!(store.flush(pool, key(number)));
    }
    // What was freed is to be had at once, whether its hole is punched yet or not.
    for number in 0..300 {
        assert_eq!(
            store.put(pool, key(number), &incompressible(number)),
            Put::Stored,
            "page {number}"
        );
    }
    for number in (0..300).chain(400..stored) {
        assert!(get(&store, pool, number).expect("get"), "page {number}");
    }
    // How full the disk is now is up to what was demoted meanwhile. Emptied, it is in no trouble.
    for number in (0..300).chain(400..stored) {
        assert!(store.flush(pool, key(number)));
    }
    assert_eq!(store.disk_counters().expect("disk").trouble, None);
}

#[test]
fn what_no_slot_names_is_given_back_to_the_disk() {
    let config = config(64 * MIB);
    let (store, client, pool) = open(&config);
    for number in 0..2048 {
        assert_eq!(store.put(pool, key(number), &incompressible(number)), Put::Stored);
    }
    let kept = kept(&store);
    let file = kept.disk.as_ref().expect("disk")[0].try_clone().expect("duplicate");
    let blocks = || rustix::fs::fstat(&file).expect("length").st_blocks;
    let before = blocks();
    store.remove_client(client).expect("remove");
    std::mem::forget(store);
    // As if it had been killed before the disk was told.
    let store = Store::reopen(config.clone(), kept).expect("reopen");
    assert_eq!((store.disk_bytes(), blocks()), (0, 0), "of {before} blocks");
}

#[test]
fn a_disk_that_does_not_answer_is_an_error_at_the_deadline_and_holds_nobody_else_up() {
    let mut slow = config(64 * MIB);
    let (store, _, pool) = open(&slow);
    for number in 0..2048 {
        assert_eq!(store.put(pool, key(number), &incompressible(number)), Put::Stored);
    }
    let reads = || store.disk_counters().expect("disk").read_pages;
    let (near, far): (Vec<u64>, Vec<u64>) = (0..2048).partition(|&number| {
        let before = reads();
        assert!(get(&store, pool, number).expect("get"));
        reads() == before
    });
    let disk = slow.disk.as_mut().expect("disk");
    // The machine may keep a thread for a second.
    let (delay, deadline) = (Duration::from_secs(6), Duration::from_secs(2));
    (disk.delay_ns, disk.deadline) = (delay.as_nanos() as u64, deadline);
    let store = again(store, &slow);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| (get(&store, pool, far[0]), began.elapsed()));
        std::thread::sleep(Duration::from_millis(50));
        for &number in &near {
            assert!(get(&store, pool, number).expect("get"));
        }
        assert!(
            !late.is_finished() && began.elapsed() < deadline,
            "the others wait: {:?}",
            began.elapsed()
        );
        let (got, took) = late.join().expect("join");
        let last_error = store.disk_counters().expect("disk").last_error;
        let (last_error, _) = last_error.expect("an error");
        assert_eq!(last_error.to_string(), "a read failed: the disk does not answer in time");
        let Err(Error::Disk(error)) = got else { panic!("{got:?}") };
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(took < delay - Duration::from_secs(1), "{took:?}");
    });
    // A put that finds no room waits no longer, and later ones are refused at once.
    let refused =
        (3000..9000).find(|&n| store.put(pool, key(n), &incompressible(n)) != Put::Stored);
    let refused = refused.expect("a refusal");
    // The disk is tried again after a second: if the machine took as long, the next put is the one that waits.
    let is_at_once = || {
        let again = Instant::now();
        assert_eq!(
            store.put(pool, key(refused), &incompressible(1_u64)),
            Put::Refused(Refusal::NodeFull)
        );
        again.elapsed() < deadline / 4
    };
    assert!((0..5).any(|_| is_at_once()), "each refusal waits for the disk");
    let trouble = store.disk_counters().expect("disk").trouble;
    assert_eq!(trouble, Some(DiskTrouble::Failed(rustix::io::Errno::TIMEDOUT)));
    assert!(store.disk_counters().expect("disk").failed_reads == 1);
}

#[test]
fn a_store_without_disk_takes_one_up_and_goes_on_without_the_setting() {
    let with = config(16 * MIB);
    let without = Config { disk: None, ..with.clone() };
    let (store, _, pool) = open(&without);
    assert!(store.kept_disk_descriptors().is_none() && store.disk_counters().is_none());
    assert_eq!(store.put(pool, key(0), &incompressible(0_u64)), Put::Stored);
    let store = again(store, &with);
    for number in 1..2048 {
        assert_eq!(store.put(pool, key(number), &incompressible(number)), Put::Stored);
    }
    let store = again(store, &without);
    let counters = store.disk_counters().expect("disk");
    assert_eq!((counters.capacity_pages, counters.pages > 1000), (4096, true));
    for number in 0..2048 {
        assert!(get(&store, pool, number).expect("get"));
    }
    // Without what was kept of the disk there is no store.
    let lost = Kept::from(kept(&store).memory);
    drop(store);
    assert!(matches!(Store::reopen(with, lost), Err(Error::Damaged(_))));
}

#[test]
fn many_threads_put_get_and_flush_beyond_memory() {
    let config = config(64 * MIB);
    let (store, client, pool) = open(&config);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let mut scratch = Scratch::new();
                for round in 0..3_u64 {
                    for number in (thread..4000).step_by(4) {
                        assert_eq!(
                            store.put(pool, key(number), &incompressible(number)),
                            Put::Stored
                        );
                        let other = (number * 7 + round) % 4000 / 4 * 4 + thread;
                        get(store, pool, other).expect("get");
                    }
                    for number in (thread..4000).step_by(8) {
                        assert!(store.flush(pool, key(number)));
                    }
                    store.demote(32, &mut scratch);
                }
            });
        }
    });
    let used = store.statistics(client).expect("statistics").used_pages;
    let store = again(store, &config);
    assert_eq!(store.statistics(client).expect("statistics").used_pages, used);
    let found = (0..4000).filter(|&number| get(&store, pool, number).expect("get")).count();
    assert_eq!(found as u64, used);
}

#[test]
fn a_disk_that_is_slow_but_within_its_deadline_refuses_nothing() {
    let mut slow = config(64 * MIB);
    slow.disk.as_mut().expect("disk").delay_ns = 100_000_000;
    let (store, _, pool) = open(&slow);
    // More at the same time than the pages that memory has for them to move.
    std::thread::scope(|scope| {
        for thread in 0..48_u64 {
            let store = &store;
            scope.spawn(move || {
                for number in (thread..2400).step_by(48) {
                    let put = store.put(pool, key(number), &incompressible(number));
                    assert_eq!(put, Put::Stored, "{number}: {:?}", store.disk_counters());
                }
            });
        }
    });
    let counters = store.disk_counters().expect("disk");
    assert!(counters.pages > 1000 && counters.refused_pages == 0, "{counters:?}");
}

#[test]
fn two_stores_in_one_directory_have_nothing_to_do_with_each_other() {
    let config = config(16 * MIB);
    let stores = [open(&config), open(&config)];
    for number in 0..2048 {
        for ((store, _, pool), other) in stores.iter().zip([0, 10_000]) {
            assert_eq!(store.put(*pool, key(number), &incompressible(number + other)), Put::Stored);
        }
    }
    let [(first, _, pool), (second, ..)] = stores;
    drop(second);
    for number in 0..2048 {
        assert!(get(&first, pool, number).expect("get"), "page {number}");
    }
}

#[test]
fn a_store_that_goes_on_with_a_smaller_disk_keeps_what_it_has_and_takes_no_more() {
    let (large, small) = (config(16 * MIB), config(2 * MIB));
    let (store, _, pool) = open(&large);
    for number in 0..2048 {
        assert_eq!(store.put(pool, key(number), &incompressible(number)), Put::Stored);
    }
    let store = again(store, &small);
    let counters = store.disk_counters().expect("disk");
    assert!(counters.pages > 1000, "{counters:?}");
    assert_eq!((counters.capacity_pages, counters.trouble), (512, Some(DiskTrouble::Full)));
    let refused = (3000..5000)
        .find(|&number| store.put(pool, key(number), &incompressible(0_u64)) != Put::Stored);
    assert!(refused.is_some(), "beyond its memory it takes nothing");
    for number in 0..2048 {
        assert!(get(&store, pool, number).expect("get"), "page {number}");
    }
    // Below its new size it takes pages again.
    for number in 0..1800 {
        assert!(store.flush(pool, key(number)));
    }
    for number in 0..900 {
        assert_eq!(
            store.put(pool, key(number), &incompressible(number)),
            Put::Stored,
            "page {number}"
        );
    }
    let counters = store.disk_counters().expect("disk");
    assert!(counters.pages > 0 && counters.pages <= 512, "{counters:?}");
}
