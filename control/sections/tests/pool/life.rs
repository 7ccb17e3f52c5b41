//! The pool with well-behaved guests.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{MIB, Mapping, SECTION, TestFolder, TestMount, allocated};
use spillway_sections::{Backing, Error, GuestFile, Pool, Settings};

const DEVICE: GuestFile = GuestFile::Device(1);

fn set_aside(pool: &Pool, guest: &str) -> u64 {
    pool.usage().guests[guest].devices[&1].set_aside_bytes
}

/// A guest's whole life, on either file system; the pool has 8 sections.
pub fn a_guest_boots_grows_shrinks_and_goes(folder: &TestFolder) {
    let pool = folder.pool(8);
    let boot = pool.create("vm", GuestFile::Boot, 2 * SECTION).unwrap();
    let device = pool.create("vm", DEVICE, 16 * SECTION).unwrap();
    assert_eq!(boot, pool.path("vm", GuestFile::Boot).unwrap());
    assert_eq!((allocated(&boot), allocated(&device)), (2 * SECTION, 0));
    assert_eq!(fs::metadata(&device).unwrap().len(), 16 * SECTION);
    assert_eq!(pool.reserve("vm", 1, SECTION).unwrap(), SECTION);
    assert_eq!(pool.reserve("vm", 1, 2 * SECTION).unwrap(), 3 * SECTION);
    assert_eq!(allocated(&device), 3 * SECTION);
    let usage = pool.usage();
    assert_eq!((usage.used_bytes, usage.free_bytes), (5 * SECTION, 3 * SECTION));
    assert_eq!(usage.guests["vm"].used_bytes(), 5 * SECTION);
    let refused = pool.reserve("vm", 1, 4 * SECTION).unwrap_err();
    assert_eq!(refused.to_string(), "the section pool is dry: 16 MiB asked, 12 MiB free");
    assert_eq!((allocated(&device), pool.usage()), (3 * SECTION, usage));
    let settled = pool.settle_device("vm", 1, SECTION).unwrap();
    assert_eq!(settled.set_aside_bytes, 3 * SECTION, "what was not plugged stays");
    let settled = pool.settle_device("vm", 1, 0).unwrap();
    assert_eq!((settled.released_bytes, settled.set_aside_bytes), (3 * SECTION, 0));
    assert_eq!(allocated(&device), 0);
    assert_eq!(pool.reserve("vm", 1, 6 * SECTION).unwrap(), 6 * SECTION);
    assert_eq!(pool.clear("vm").unwrap(), 8 * SECTION);
    assert!(!boot.exists() && !device.exists() && !boot.parent().unwrap().exists());
    assert_eq!((pool.usage().used_bytes, pool.usage().guests.len()), (0, 0));
    assert_eq!(pool.clear("vm").unwrap(), 0);
}

/// A returned section is zero when the next guest gets it; the pool has 4 sections.
pub fn what_comes_back_is_zero_for_the_next(folder: &TestFolder) {
    let pool = folder.pool(4);
    for (guest, value) in [("a", 0x5ec2), ("b", 0xc4e7)] {
        let path = pool.create(guest, DEVICE, 4 * SECTION).unwrap();
        let mapping = Mapping::of(&path);
        for round in 0..2 {
            pool.reserve(guest, 1, 4 * SECTION).unwrap();
            for section in 0..4 {
                assert!(mapping.reads(section, 0), "{guest} round {round} section {section}");
                mapping.write(section, value);
            }
            // Once punched by QEMU, once by the pool.
            if round == 0 {
                mapping.punch(0, 4 * SECTION);
            }
            assert_eq!(pool.settle_device(guest, 1, 0).unwrap().released_bytes, 4 * SECTION);
        }
    }
    pool.create("c", GuestFile::Boot, 4 * SECTION).unwrap();
    let path = pool.path("c", GuestFile::Boot).unwrap();
    assert!((0..4).all(|section| Mapping::of(&path).reads(section, 0)));
    Mapping::of(&path).write(3, 1);
    pool.clear("c").unwrap();
    let path = pool.create("d", GuestFile::Boot, 4 * SECTION).unwrap();
    assert!((0..4).all(|section| Mapping::of(&path).reads(section, 0)));
}

/// Files are removed only when no process uses any of them; the pool has 4 sections.
pub fn files_in_use_stay(folder: &TestFolder) {
    let pool = folder.pool(4);
    pool.create("vm", GuestFile::Boot, SECTION).unwrap();
    let device = pool.create("vm", DEVICE, 4 * SECTION).unwrap();
    pool.reserve("vm", 1, SECTION).unwrap();
    let before = pool.usage();
    let mapping = Mapping::of(&device);
    let reader = fs::File::open(&device).unwrap();
    for _ in 0..2 {
        let error = pool.clear("vm").unwrap_err();
        assert!(matches!(&error, Error::InUse { path } if *path == device), "{error}");
        assert_eq!(pool.usage(), before);
        assert!(pool.path("vm", GuestFile::Boot).unwrap().exists());
    }
    drop(mapping);
    assert!(matches!(pool.clear("vm"), Err(Error::InUse { .. })), "a reader counts as well");
    assert!(matches!(pool.empty_devices("vm"), Err(Error::InUse { .. })));
    assert_eq!(pool.usage(), before);
    // A process that has only the boot memory open does not use a device.
    drop(reader);
    let boot = fs::File::open(pool.path("vm", GuestFile::Boot).unwrap()).unwrap();
    assert_eq!(pool.empty_devices("vm").unwrap(), SECTION);
    assert_eq!(pool.usage().used_bytes, SECTION);
    assert_eq!(pool.reserve("vm", 1, 2 * SECTION).unwrap(), 2 * SECTION);
    assert_eq!(pool.empty_devices("vm").unwrap(), 2 * SECTION);
    assert_eq!(pool.empty_devices("nobody").unwrap(), 0);
    drop(boot);
    let reader = fs::File::open(&device).unwrap();
    drop(reader);
    assert_eq!(pool.clear("vm").unwrap(), SECTION);
}

/// A daemon's state after a restart; the pool has 8 sections.
pub fn what_there_is_is_read_back(folder: &TestFolder) {
    let pool = folder.pool(8);
    pool.create("a", GuestFile::Boot, SECTION).unwrap();
    let path = pool.create("a", DEVICE, 8 * SECTION).unwrap();
    pool.create("b", GuestFile::Device(2), 2 * SECTION).unwrap();
    pool.reserve("a", 1, 4 * SECTION).unwrap();
    let before = pool.usage();
    let error = Pool::open(&folder.settings(8)).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    drop(pool);
    assert_eq!(folder.pool(8).usage(), before);
    Mapping::of(&path).punch(SECTION, 2 * SECTION);
    fs::create_dir(folder.dir().join("empty")).unwrap();
    let pool = folder.pool(8);
    let usage = pool.usage();
    assert_eq!(usage.guests["a"].devices[&1].set_aside_bytes, 2 * SECTION);
    assert_eq!(usage.guests["a"].devices[&1].bound_bytes, 8 * SECTION);
    assert_eq!(usage.guests["b"].devices[&2].set_aside_bytes, 0);
    assert_eq!((usage.used_bytes, usage.guests.len()), (3 * SECTION, 2));
    assert!(!folder.dir().join("empty").exists());
    pool.reserve("a", 1, 2 * SECTION).unwrap();
    assert_eq!(allocated(&path), 4 * SECTION);
    drop(pool);
    let smaller = folder.pool(4);
    let usage = smaller.usage();
    assert_eq!((usage.used_bytes, usage.free_bytes), (5 * SECTION, 0), "more than it may have");
    assert!(matches!(smaller.reserve("a", 1, SECTION), Err(Error::Dry { free_bytes: 0, .. })));
}

#[test]
fn on_tmpfs() {
    assert_eq!(TestFolder::shm().pool(8).backing(), Backing::Tmpfs);
    a_guest_boots_grows_shrinks_and_goes(&TestFolder::shm());
    what_comes_back_is_zero_for_the_next(&TestFolder::shm());
    files_in_use_stay(&TestFolder::shm());
    what_there_is_is_read_back(&TestFolder::shm());
}

#[test]
fn what_was_granted_counts_until_it_is_settled() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    let path = pool.create("a", DEVICE, 8 * SECTION).unwrap();
    pool.create("b", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("a", 1, 4 * SECTION).unwrap();
    Mapping::of(&path).punch(2 * SECTION, 2 * SECTION);
    assert_eq!(pool.usage().free_bytes, 0);
    assert!(matches!(pool.reserve("b", 1, SECTION), Err(Error::Dry { free_bytes: 0, .. })));
    let settled = pool.settle_device("a", 1, 2 * SECTION).unwrap();
    assert_eq!((settled.released_bytes, settled.set_aside_bytes), (2 * SECTION, 2 * SECTION));
    pool.reserve("b", 1, 2 * SECTION).unwrap();
    assert_eq!(pool.usage().free_bytes, 0);
}

#[test]
fn the_lowest_holes_are_filled_first() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 4 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    (0..4).for_each(|section| mapping.write(section, section + 1));
    mapping.punch(SECTION, SECTION);
    pool.settle_device("vm", 1, 3 * SECTION).unwrap();
    pool.reserve("vm", 1, 2 * SECTION).unwrap();
    assert!(mapping.reads(0, 1) && mapping.reads(1, 0) && mapping.reads(2, 3));
    assert_eq!(mapping.take(SECTION, SECTION), SECTION);
    assert_eq!(mapping.take(4 * SECTION, 4 * SECTION), SECTION);
    assert_eq!(mapping.take(0, 8 * SECTION), 3 * SECTION);
}

#[test]
fn a_hole_that_was_not_settled_is_found_when_there_is_no_other() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 4 * SECTION).unwrap();
    pool.reserve("vm", 1, 3 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    (0..3).for_each(|section| mapping.write(section, 7));
    mapping.punch(0, 2 * SECTION);
    mapping.allocate(3 * SECTION, SECTION);
    pool.reserve("vm", 1, SECTION).unwrap();
    assert_eq!(mapping.take(0, SECTION), SECTION);
    assert_eq!(allocated(&path), 2 * SECTION);
}

#[test]
fn a_device_that_was_emptied_is_filled_from_its_start() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 3 * SECTION).unwrap();
    assert_eq!(pool.empty_devices("vm").unwrap(), 3 * SECTION);
    // The next VM of this name plugs its lowest section first.
    pool.reserve("vm", 1, SECTION).unwrap();
    assert_eq!(Mapping::of(&path).take(0, SECTION), SECTION);
    assert_eq!(allocated(&path), 0);
}

#[test]
fn holes_of_single_pages_are_filled_to_the_byte() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 3 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    (0..3).for_each(|section| mapping.write(section, 7));
    for page in [5, 6, 700, 2100] {
        mapping.punch(page * 4096, 4096);
    }
    pool.settle_device("vm", 1, SECTION).unwrap();
    assert_eq!(set_aside(&pool, "vm"), 3 * SECTION - 4 * 4096);
    assert_eq!(pool.reserve("vm", 1, 2 * MIB).unwrap(), 3 * SECTION + 2 * MIB - 4 * 4096);
    assert_eq!(allocated(&path), set_aside(&pool, "vm"));
    assert_eq!(mapping.take(0, 3 * SECTION), 3 * SECTION);
}

#[test]
fn what_qemu_takes_by_itself_is_counted() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, SECTION).unwrap();
    Mapping::of(&path).allocate(4 * SECTION, 2 * SECTION);
    let settled = pool.settle_device("vm", 1, 2 * SECTION).unwrap();
    assert_eq!((settled.released_bytes, settled.set_aside_bytes), (0, 3 * SECTION));
    // Plugged without `prealloc=on`, and not touched yet.
    assert_eq!(pool.settle_device("vm", 1, 6 * SECTION).unwrap().set_aside_bytes, 6 * SECTION);
    assert_eq!(pool.usage().free_bytes, 0);
    let far = pool.settle_device("vm", 1, 99 * SECTION).unwrap();
    assert_eq!(far.set_aside_bytes, 8 * SECTION, "no device is larger than its file");
    assert_eq!(pool.settle_device("vm", 1, 0).unwrap().released_bytes, 8 * SECTION);
}

#[test]
fn an_empty_device_holds_nothing_whoever_took_it() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    Mapping::of(&path).allocate(0, 2 * SECTION);
    assert_eq!(pool.settle_device("vm", 1, 0).unwrap().set_aside_bytes, 0);
    assert_eq!(allocated(&path), 0);
}

#[test]
fn a_mount_that_others_fill_refuses_before_anything_changes() {
    let Some(mount) = TestMount::new(c"tmpfs", "size=32M") else { return };
    let (folder, other) = (mount.folder(), mount.folder());
    let pool = folder.pool(7);
    pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 2 * SECTION).unwrap();
    other.pool(2).create("vm", GuestFile::Boot, 2 * SECTION).unwrap();
    let before = pool.usage();
    // The folders take a page or two of the mount.
    let free = 4 * SECTION - MIB..=4 * SECTION;
    let refused = pool.reserve("vm", 1, 5 * SECTION).unwrap_err();
    let dry = matches!(refused, Error::Dry { free_bytes, .. } if free.contains(&free_bytes));
    assert!(dry, "{refused}");
    assert_eq!((pool.usage(), pool.usage().used_bytes), (before, 2 * SECTION));
    pool.reserve("vm", 1, 3 * SECTION).unwrap();
}

#[test]
fn a_file_is_created_once() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    pool.create("vm", GuestFile::Boot, 2 * SECTION).unwrap();
    pool.create("vm", DEVICE, 4 * SECTION).unwrap();
    pool.reserve("vm", 1, SECTION).unwrap();
    let before = pool.usage();
    pool.create("vm", GuestFile::Boot, 2 * SECTION).unwrap();
    pool.create("vm", DEVICE, 4 * SECTION).unwrap();
    assert_eq!(pool.usage(), before);
    let error = pool.create("vm", DEVICE, 8 * SECTION).unwrap_err();
    assert!(error.to_string().ends_with("vm/device has 16 MiB, not 32 MiB: clear the guest first"));
    let error = pool.create("vm", GuestFile::Boot, SECTION).unwrap_err();
    assert!(matches!(error, Error::OtherSize { .. }), "{error}");
    assert_eq!(pool.usage(), before);
}

#[test]
fn boot_memory_that_was_begun_is_completed() {
    let folder = TestFolder::shm();
    drop(folder.pool(8));
    let guest = folder.dir().join("vm");
    fs::create_dir(&guest).unwrap();
    let path = guest.join("boot");
    fs::File::create(&path).unwrap().set_len(4 * SECTION).unwrap();
    Mapping::of(&path).allocate(0, SECTION);
    let pool = folder.pool(8);
    assert_eq!(pool.usage().used_bytes, 4 * SECTION, "it was promised all of it");
    pool.create("vm", GuestFile::Boot, 4 * SECTION).unwrap();
    assert_eq!(allocated(&path), 4 * SECTION);
    assert_eq!(pool.usage().used_bytes, 4 * SECTION);
}

#[test]
fn what_can_t_be_had_leaves_nothing_behind() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    let refused = pool.create("vm", GuestFile::Boot, 5 * SECTION).unwrap_err();
    assert!(matches!(refused, Error::Dry { .. }), "{refused}");
    assert!(!folder.dir().join("vm").exists());
    assert!(pool.usage().guests.is_empty());
    pool.create("vm", DEVICE, 2 * SECTION).unwrap();
    assert!(pool.create("vm", GuestFile::Boot, 5 * SECTION).is_err());
    assert_eq!(fs::read_dir(folder.dir().join("vm")).unwrap().count(), 1);
    let error = pool.reserve("vm", 1, 3 * SECTION).unwrap_err();
    assert!(
        error.to_string().ends_with("can't have 12 MiB more: 0 MiB of at most 8 MiB are set aside"),
        "{error}"
    );
    // The name is taken by a folder.
    fs::create_dir(folder.dir().join("vm/boot")).unwrap();
    assert!(pool.create("vm", GuestFile::Boot, SECTION).is_err());
    assert_eq!(pool.usage().used_bytes, 0);
    assert_eq!(pool.usage().guests["vm"].boot_bytes, 0);
}

#[test]
fn only_owner_and_group_get_in() {
    let folder = TestFolder::shm();
    let group = rustix::process::getgid().as_raw();
    for group in [None, Some(group)] {
        let name = if group.is_some() { "with" } else { "without" };
        let dir = folder.dir().with_file_name(name);
        let pool = Pool::open(&Settings { dir: dir.clone(), group, ..folder.settings(4) }).unwrap();
        let boot = pool.create("vm", GuestFile::Boot, SECTION).unwrap();
        let device = pool.create("vm", DEVICE, SECTION).unwrap();
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let modes = [&dir, &dir.join("vm"), &boot, &device].map(|path| mode(path));
        let expected = match group {
            None => [0o700, 0o700, 0o600, 0o600],
            Some(_) => [0o750, 0o750, 0o660, 0o660],
        };
        assert_eq!(modes, expected);
    }
}

#[test]
fn guests_that_ask_at_once_get_what_there_is_and_no_more() {
    let folder = TestFolder::shm();
    let pool = folder.pool(16);
    let granted: u64 = thread::scope(|scope| {
        let guest = |number: u32| {
            let pool = &pool;
            scope.spawn(move || {
                let name = format!("vm{number}");
                pool.create(&name, DEVICE, 32 * SECTION).unwrap();
                let mut granted = 0;
                while pool.reserve(&name, 1, SECTION).is_ok() {
                    granted += SECTION;
                    assert!(pool.usage().used_bytes <= 16 * SECTION);
                }
                granted
            })
        };
        let guests: Vec<_> = (0..4).map(guest).collect();
        guests.into_iter().map(|guest| guest.join().unwrap()).sum()
    });
    assert_eq!((granted, pool.usage().free_bytes), (16 * SECTION, 0));
}

/// Guests share 32 locks by their names' hash.
#[test]
fn a_guest_gets_what_lies_ready_for_another_of_its_turn() {
    let turn = |name: &str| {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish() % 32
    };
    let other = (0..).map(|it| format!("vm{it}")).find(|it| turn(it) == turn("vm")).unwrap();
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.create(&other, DEVICE, 8 * SECTION).unwrap();
    while pool.keep_ready("vm", 1, 0, 8 * SECTION).unwrap() {}
    assert_eq!(pool.usage().guests["vm"].ready_bytes(), 8 * SECTION);
    let (said, heard) = mpsc::channel();
    thread::spawn(move || said.send(pool.reserve(&other, 1, 2 * SECTION).is_ok()));
    assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(true), "it waits for itself");
}

#[test]
fn requests_for_one_guest_follow_each_other() {
    let folder = TestFolder::shm();
    let pool = folder.pool(32);
    let path = pool.create("vm", DEVICE, 32 * SECTION).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    pool.reserve("vm", 1, SECTION).unwrap();
                }
            });
        }
    });
    assert_eq!((set_aside(&pool, "vm"), allocated(&path)), (32 * SECTION, 32 * SECTION));
}

#[test]
fn a_device_that_nobody_has_can_go_again() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    let second = pool.create("vm", GuestFile::Device(2), 4 * SECTION).unwrap();
    let mapping = Mapping::of(&second);
    assert!(matches!(pool.remove_device("vm", 2), Err(Error::InUse { .. })));
    drop(mapping);
    pool.remove_device("vm", 2).unwrap();
    assert!(!second.exists() && !pool.usage().guests["vm"].devices.contains_key(&2));
    assert!(matches!(pool.remove_device("vm", 2), Err(Error::NoFile { .. })));
    // Another size the next time.
    pool.create("vm", GuestFile::Device(2), 2 * SECTION).unwrap();
}
