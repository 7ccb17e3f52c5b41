//! Compressed memory and files: what moves there comes back, and damage is told.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use spillway_store::{
    ClientConfig, Config, DiskConfig, Error, Get, Key, PAGE_BYTES, PageBuf, PoolId, PoolSpec, Put,
    Refusal, Scratch, Store,
};
use spillway_test_support::pages::{half_text, incompressible};

const MIB: u64 = 1 << 20;

fn store(config: Config) -> (Store, PoolId) {
    let store = Store::open(config).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    (store, pool)
}

fn with_disk(memory_bytes: u64, disk_bytes: u64, compress: bool) -> Config {
    let disk = DiskConfig::new(std::env::temp_dir(), disk_bytes);
    Config { disk: Some(disk), compress, ..Config::embedded(memory_bytes) }
}

fn key(number: u32) -> Key {
    Key::new(7, number)
}

fn assert_page(store: &Store, pool: PoolId, number: u32, expected: &[u8; PAGE_BYTES]) {
    let mut copy = [0; PAGE_BYTES];
    assert_eq!(store.get(pool, key(number), &mut copy).expect("get"), Get::Hit(PAGE_BYTES));
    assert!(&copy == expected, "page {number} by get");
    let mut scratch = PageBuf::ZERO;
    let page = store.read_page(pool, key(number), &mut scratch).expect("read").expect("hit");
    assert!(&*page == expected, "page {number} by reference");
}

/// Puts pages until one is refused, demoting as a pager does. Gives how many were stored.
fn fill(store: &Store, pool: PoolId, scratch: &mut Scratch, most: u32) -> u32 {
    for number in 0..most {
        let page = incompressible(number);
        while store.put(pool, key(number), &page) != Put::Stored {
            if store.demote(64, scratch) == 0 {
                return number;
            }
        }
    }
    most
}

#[test]
fn packed_pages_take_less_memory_and_come_back() {
    let (store, pool) = store(Config::embedded(64 * MIB));
    let mut scratch = Scratch::new();
    for number in 0..4000 {
        assert_eq!(store.put(pool, key(number), &half_text(number)), Put::Stored);
    }
    let raw_bytes = store.memory_bytes();
    while store.demote(256, &mut scratch) != 0 {}
    assert_eq!(store.compressed_pages(), 4000);
    store.trim();
    let packed_bytes = store.memory_bytes();
    assert!(packed_bytes * 100 < raw_bytes * 75, "{packed_bytes} of {raw_bytes}");
    for number in 0..4000 {
        assert_page(&store, pool, number, &half_text(number));
    }
    for number in 0..4000 {
        assert!(store.flush(pool, key(number)));
    }
    assert_eq!(store.compressed_pages(), 0);
}

#[test]
fn pages_that_do_not_shrink_stay_raw_and_are_tried_once() {
    let (store, pool) = store(Config::embedded(16 * MIB));
    let mut scratch = Scratch::new();
    for number in 0..100 {
        assert_eq!(
            store.put_compressed(pool, key(number), &incompressible(number), &mut scratch),
            Put::Stored
        );
    }
    assert_eq!(store.demote(1000, &mut scratch), 0);
    assert_eq!(store.compressed_pages(), 0);
    for number in 0..100 {
        assert_page(&store, pool, number, &incompressible(number));
    }
}

#[test]
fn a_put_off_the_fault_path_packs_at_once() {
    let (store, pool) = store(Config::embedded(16 * MIB));
    let mut scratch = Scratch::new();
    assert_eq!(store.put_compressed(pool, key(1), &half_text(1_u32), &mut scratch), Put::Stored);
    assert_eq!(store.compressed_pages(), 1);
    assert_page(&store, pool, 1, &half_text(1_u32));
    assert_eq!(store.put(pool, key(1), &half_text(2_u32)), Put::Stored);
    assert_eq!(store.compressed_pages(), 0);
    assert_page(&store, pool, 1, &half_text(2_u32));
}

#[test]
fn what_memory_has_no_room_for_goes_to_a_file_and_comes_back() {
    for compress in [false, true] {
        let (store, pool) = store(with_disk(4 * MIB, 64 * MIB, compress));
        let mut scratch = Scratch::new();
        let count = 3000;
        assert_eq!(fill(&store, pool, &mut scratch, count), count);
        assert!(store.disk_bytes() > 4 * MIB, "{} bytes in files", store.disk_bytes());
        assert!(store.memory_bytes() <= 4 * MIB);
        for number in 0..count {
            assert_page(&store, pool, number, &incompressible(number));
        }
        for number in 0..count {
            assert!(store.flush(pool, key(number)));
        }
        assert_eq!(store.disk_bytes(), 0);
    }
}

#[test]
fn slots_of_files_are_used_again() {
    let (store, pool) = store(with_disk(2 * MIB, 8 * MIB, false));
    let mut scratch = Scratch::new();
    for _ in 0..5 {
        assert_eq!(fill(&store, pool, &mut scratch, 2000), 2000);
        for number in 0..2000 {
            assert!(store.flush(pool, key(number)));
        }
    }
    assert_eq!(store.disk_bytes(), 0);
}

#[test]
fn a_full_file_tier_refuses_and_reads_go_on() {
    let (store, pool) = store(with_disk(2 * MIB, MIB, true));
    let mut scratch = Scratch::new();
    let stored = fill(&store, pool, &mut scratch, 5000);
    assert!((256..800).contains(&stored), "{stored}");
    assert_eq!(
        store.put(pool, key(stored), &incompressible(stored)),
        Put::Refused(Refusal::NodeFull)
    );
    assert_eq!(store.take_disk_error(), Some(rustix::io::Errno::NOSPC));
    assert_eq!(store.take_disk_error(), None);
    for number in 0..stored {
        assert_page(&store, pool, number, &incompressible(number));
    }
}

fn descriptor_of(number: u64) -> OwnedFd {
    let path = format!("/proc/self/fd/{number}");
    File::options().read(true).write(true).open(path).expect("the store's file").into()
}

#[test]
fn a_corrupt_byte_is_an_error_and_other_pages_go_on() {
    let (store, pool) = store(with_disk(2 * MIB, 64 * MIB, false));
    let mut scratch = Scratch::new();
    assert_eq!(fill(&store, pool, &mut scratch, 1000), 1000);
    let file = File::from(descriptor_of(store.file_descriptors()[0]));
    // Every slot of the first megabyte gets one wrong byte.
    for slot in 0..256 {
        let mut byte = [0];
        let at = slot * PAGE_BYTES as u64 + slot * 13 % 4096;
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 0x40], at).expect("write");
    }
    let mut corrupt = 0;
    for number in 0..1000 {
        let mut page = [0; PAGE_BYTES];
        match store.get(pool, key(number), &mut page) {
            Ok(Get::Hit(PAGE_BYTES)) => {
                assert!(page == incompressible(number), "wrong bytes served")
            }
            Err(Error::Corrupt) => corrupt += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(corrupt, 256);
}

#[test]
fn a_sealed_file_is_left_alone_and_closed_with_its_last_page() {
    let (store, pool) = store(with_disk(2 * MIB, 64 * MIB, false));
    let mut scratch = Scratch::new();
    assert_eq!(fill(&store, pool, &mut scratch, 1000), 1000);
    let before = store.file_descriptors();
    assert_eq!(before.len(), 1);
    let file = File::from(descriptor_of(before[0]));
    let sealed = || {
        let mut bytes = vec![0; 400 * PAGE_BYTES];
        file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    };
    let snapshot = sealed();
    store.seal_files();
    for number in 0..1000 {
        assert_eq!(store.put(pool, key(number), &incompressible(number + 5000)), {
            if store.exists(pool, key(number)) {
                Put::Stored
            } else {
                Put::Refused(Refusal::NodeFull)
            }
        });
        store.demote(32, &mut scratch);
    }
    assert!(snapshot == sealed(), "a sealed file was written to");
    assert_eq!(store.file_descriptors().len(), 1, "the sealed file is closed, the new one is open");
    assert!(store.flush_object(pool, 7) > 0);
    assert_eq!(store.disk_bytes(), 0);
}

#[test]
fn another_descriptor_table_reads_on() {
    let (store, pool) = store(with_disk(2 * MIB, 64 * MIB, false));
    let mut scratch = Scratch::new();
    assert_eq!(fill(&store, pool, &mut scratch, 1000), 1000);
    store.seal_files();
    let old = store.file_descriptors();
    store.reopen_files(|number| Ok(descriptor_of(number))).expect("reopen");
    assert_ne!(store.file_descriptors(), old);
    let reopened = store.file_descriptors();
    for number in 1000..2000 {
        assert_eq!(
            store.put_compressed(pool, key(number), &incompressible(number), &mut scratch),
            Put::Stored
        );
    }
    // A file that was begun since is in the new table already.
    let asked = std::cell::RefCell::new(Vec::new());
    let ask = |number| {
        asked.borrow_mut().push(number);
        Ok(descriptor_of(number))
    };
    store.reopen_files(ask).expect("reopen");
    assert!(asked.into_inner().iter().all(|number| reopened.contains(number)));
    let old: Vec<_> = old.into_iter().chain(reopened).collect();
    for number in old {
        // SAFETY: the store has forgotten the number, and nobody else has it.
        drop(unsafe { OwnedFd::from_raw_fd(number as i32) });
    }
    for number in 0..1000 {
        assert_page(&store, pool, number, &incompressible(number));
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_told_at_once() {
    let dir = std::env::temp_dir().join("spillway-no-such-directory");
    let disk = DiskConfig::new(dir, MIB);
    let config = Config { disk: Some(disk), ..Config::embedded(2 * MIB) };
    assert!(matches!(Store::open(config), Err(Error::Io(_))));
}

#[test]
fn no_file_is_left_behind() {
    let dir = std::env::temp_dir().join(format!("spillway-store-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("directory");
    let disk = DiskConfig::new(dir.clone(), 64 * MIB);
    let (store, pool) = store(Config { disk: Some(disk), ..Config::embedded(2 * MIB) });
    assert_eq!(fill(&store, pool, &mut Scratch::new(), 1000), 1000);
    assert!(store.disk_bytes() > 0);
    assert_eq!(std::fs::read_dir(&dir).expect("list").count(), 0);
    drop(store);
    std::fs::remove_dir(&dir).expect("empty");
}

/// Puts pages until memory is out, and flushes some of them. Gives how many were put.
fn fill_with_gaps(store: &Store, pool: PoolId) -> u32 {
    let put = |number: &u32| store.put(pool, key(*number), &incompressible(*number)) == Put::Stored;
    let full = (0..1000).take_while(put).count() as u32;
    for number in (0..full).step_by(8) {
        assert!(store.flush(pool, key(number)));
    }
    assert!(store.free_frame_bytes() > 16 * PAGE_BYTES as u64);
    full
}

/// Puts pages of one word, which take room in the index only, until one is refused. Gives how many
/// were put.
fn fill_index(store: &Store, pool: PoolId) -> u64 {
    let key = |number: u64| Key::new(1000 + number / 2, number as u32 % 2);
    let put = |number: &u64| store.put(pool, key(*number), &[7; PAGE_BYTES]) == Put::Stored;
    let count = (0..100_000).take_while(put).count() as u64;
    assert!(count < 90_000, "the index has no end");
    count
}

#[test]
fn free_frames_make_room_for_the_index() {
    let (store, pool) = store(Config::embedded(MIB));
    fill_with_gaps(&store, pool);
    let used = || store.statistics(store.clients()[0].id).expect("statistics").used_pages;
    let before = used();
    let count = fill_index(&store, pool);
    assert_eq!(store.free_frame_bytes(), 0, "refused while there is memory");
    assert_eq!(used(), before + count, "what was tried again is billed once");
}

#[test]
fn the_last_memory_is_left_to_those_who_make_room() {
    let (store, pool) = store(with_disk(MIB, 64 * MIB, false));
    let full = fill_with_gaps(&store, pool);
    let free_bytes = store.free_frame_bytes();
    fill_index(&store, pool);
    assert_eq!(store.free_frame_bytes(), free_bytes, "who makes no room takes none from others");
    let mut scratch = Scratch::new();
    for number in full..full + 500 {
        let put = store.put_compressed(pool, key(number), &incompressible(number), &mut scratch);
        assert_eq!(put, Put::Stored, "page {number}");
    }
}
