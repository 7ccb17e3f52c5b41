//! Sections that are allocated before a guest asks for them.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Mapping, SECTION, TestFolder, TestMount, allocated};
use spillway_sections::{Error, GuestFile, Pool, Settings};

const DEVICE: GuestFile = GuestFile::Device(1);

/// Makes as much ready as possible. Returns the number of ready sections.
fn keep(pool: &Pool, guest: &str, size: u64, wanted: u64) -> u64 {
    for _ in 0..64 {
        if !pool.keep_ready(guest, 1, size * SECTION, wanted * SECTION).unwrap() {
            return pool.usage().guests[guest].ready_bytes() / SECTION;
        }
    }
    panic!("no end")
}

fn counts(pool: &Pool) -> (u64, u64) {
    let usage = pool.usage();
    (usage.used_bytes / SECTION, usage.free_bytes / SECTION)
}

/// Bytes of holes in a range. Fills them.
fn holes(mapping: &Mapping, path: &Path, at: u64, bytes: u64) -> u64 {
    let before = allocated(path);
    mapping.allocate(at, bytes);
    allocated(path) - before
}

/// The pool has 8 sections.
pub fn a_guest_that_grows_finds_its_sections_ready(folder: &TestFolder) {
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    assert_eq!(keep(&pool, "vm", 0, 3), 3);
    assert_eq!((allocated(&path), counts(&pool)), (3 * SECTION, (0, 8)));
    let before = allocated(&path);
    assert_eq!(pool.reserve("vm", 1, 3 * SECTION).unwrap(), 3 * SECTION);
    assert_eq!((allocated(&path), counts(&pool)), (before, (3, 5)), "nothing more is allocated");
    let mapping = Mapping::of(&path);
    assert_eq!(holes(&mapping, &path, 0, 3 * SECTION), 0, "it is what the guest plugs");
    (0..3).for_each(|section| mapping.write(section, section + 1));
    assert_eq!(keep(&pool, "vm", 3, 2), 2);
    // More than is ready, then less.
    assert_eq!(pool.reserve("vm", 1, 3 * SECTION).unwrap(), 6 * SECTION);
    assert_eq!((allocated(&path), holes(&mapping, &path, 0, 6 * SECTION)), (6 * SECTION, 0));
    assert_eq!(keep(&pool, "vm", 6, 9), 2, "no further than the file");
    assert_eq!(pool.reserve("vm", 1, SECTION).unwrap(), 7 * SECTION);
    assert_eq!(holes(&mapping, &path, 6 * SECTION, SECTION), 0, "the one that it plugs stays");
    assert_eq!(allocated(&path), 7 * SECTION, "the guest may plug any hole now: none is ready");
    assert!((0..3).all(|section| mapping.reads(section, section + 1)));
}

/// The pool has 8 sections.
pub fn what_is_ready_lies_where_the_guest_grows(folder: &TestFolder) {
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 4 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    (0..4).for_each(|section| mapping.write(section, section + 1));
    assert_eq!(keep(&pool, "vm", 4, 2), 2);
    mapping.punch(2 * SECTION, 2 * SECTION);
    let settled = pool.settle_device("vm", 1, 2 * SECTION).unwrap();
    assert_eq!((settled.released_bytes, settled.set_aside_bytes), (2 * SECTION, 2 * SECTION));
    assert_eq!(keep(&pool, "vm", 2, 2), 2);
    assert_eq!(allocated(&path), 4 * SECTION, "what was ready above is given back");
    assert_eq!(holes(&mapping, &path, 2 * SECTION, 2 * SECTION), 0);
    assert!(mapping.reads(0, 1) && mapping.reads(1, 2) && mapping.reads(2, 0));
    mapping.punch(0, 2 * SECTION);
    assert_eq!(pool.settle_device("vm", 1, 0).unwrap().set_aside_bytes, 0);
    assert_eq!((keep(&pool, "vm", 0, 2), allocated(&path)), (2, 2 * SECTION));
    assert_eq!(holes(&mapping, &path, 0, 2 * SECTION), 0);
    assert_eq!((keep(&pool, "vm", 0, 0), allocated(&path)), (0, 0));
}

/// The pool has 8 sections.
pub fn others_get_what_lies_ready(folder: &TestFolder) {
    let pool = folder.pool(8);
    let path = pool.create("a", DEVICE, 8 * SECTION).unwrap();
    pool.create("b", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("a", 1, SECTION).unwrap();
    assert_eq!(keep(&pool, "a", 1, 7), 7);
    assert_eq!((keep(&pool, "b", 0, 1), counts(&pool)), (0, (1, 7)), "none is idle");
    pool.reserve("b", 1, 2 * SECTION).unwrap();
    assert_eq!((counts(&pool), allocated(&path)), ((3, 5), SECTION));
    assert_eq!(keep(&pool, "a", 1, 7), 5);
    pool.create("c", GuestFile::Boot, 3 * SECTION).unwrap();
    assert_eq!(keep(&pool, "a", 1, 7), 2);
    let refused = pool.reserve("a", 1, 3 * SECTION).unwrap_err();
    assert!(matches!(refused, Error::Dry { .. }), "{refused}");
    assert_eq!(pool.reserve("a", 1, 2 * SECTION).unwrap(), 3 * SECTION);
}

/// The pool has 8 sections.
pub fn a_guest_that_was_reset_has_nothing_ready(folder: &TestFolder) {
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 2 * SECTION).unwrap();
    assert_eq!(keep(&pool, "vm", 2, 2), 2);
    let mapping = Mapping::of(&path);
    // QEMU empties the file, and the guest plugs again.
    mapping.punch(0, 8 * SECTION);
    mapping.write(1, 7);
    mapping.write(2, 8);
    assert_eq!(keep(&pool, "vm", 2, 2), 1, "the lowest hole, which is one section");
    assert!(mapping.reads(1, 7) && mapping.reads(2, 8), "what it has is never given back");
    // After a restart of the daemon, the ready memory is reserved and counts as ready. On tmpfs it is more than on
    // hugetlbfs: the search for a hole has filled part of the guest's range.
    drop(mapping);
    drop(pool);
    let pool = folder.pool(8);
    let had = pool.usage().used_bytes;
    assert_eq!(keep(&pool, "vm", 2, 2) + had / SECTION - 2, 2);
    assert_eq!(pool.usage().used_bytes, had);
    assert_eq!(pool.empty_devices("vm").unwrap(), had);
    assert_eq!((allocated(&path), counts(&pool)), (0, (0, 8)));
    assert_eq!(keep(&pool, "vm", 0, 2), 2);
    assert_eq!((pool.clear("vm").unwrap(), counts(&pool)), (0, (0, 8)));
}

/// An order that arrives while memory is made ready waits for one step.
#[test]
fn large_sections_are_made_ready_in_small_steps() {
    const MIB: u64 = 1 << 20;
    let folder = TestFolder::shm();
    let section_bytes = 40 * MIB;
    let pool = Pool::open(&Settings { section_bytes, ..folder.settings(20) }).unwrap();
    let path = pool.create("vm", DEVICE, 2 * section_bytes).unwrap();
    let seen = [16, 32, 40].map(|mib| {
        let again = pool.keep_ready("vm", 1, 0, section_bytes + MIB).unwrap();
        assert_eq!(pool.usage().guests["vm"].ready_bytes(), mib * MIB);
        assert_eq!(allocated(&path), mib * MIB);
        again
    });
    assert_eq!(seen, [true, true, false], "whole sections");
    assert_eq!(pool.reserve("vm", 1, section_bytes).unwrap(), section_bytes);
    assert_eq!(allocated(&path), section_bytes);
}

#[test]
fn on_tmpfs() {
    a_guest_that_grows_finds_its_sections_ready(&TestFolder::shm());
    what_is_ready_lies_where_the_guest_grows(&TestFolder::shm());
    others_get_what_lies_ready(&TestFolder::shm());
    a_guest_that_was_reset_has_nothing_ready(&TestFolder::shm());
}

#[test]
fn what_lies_ready_for_others_stays_where_a_guest_has_enough_of_its_own() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    for guest in ["a", "b"] {
        pool.create(guest, DEVICE, 8 * SECTION).unwrap();
        assert_eq!(keep(&pool, guest, 0, 4), 4);
    }
    pool.reserve("a", 1, 4 * SECTION).unwrap();
    assert_eq!(pool.usage().guests["b"].ready_bytes(), 4 * SECTION);
}

#[test]
fn what_lay_ready_counts_when_the_rest_can_not_be_had() {
    let Some(mount) = TestMount::new(c"tmpfs", "size=33M") else { return };
    let (folder, other) = (mount.folder(), mount.folder());
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    assert_eq!(keep(&pool, "vm", 0, 4), 4);
    other.pool(2).create("other", GuestFile::Boot, 2 * SECTION).unwrap();
    let refused = pool.reserve("vm", 1, 7 * SECTION).unwrap_err();
    assert!(matches!(refused, Error::Dry { .. }), "{refused}");
    assert_eq!(pool.usage().used_bytes, allocated(&path));
}

#[test]
fn what_lay_ready_for_a_reservation_that_failed_is_ready_no_more() {
    let folder = TestFolder::shm();
    let pool = folder.pool(16);
    let path = pool.create("vm", DEVICE, 4 * SECTION).unwrap();
    assert_eq!(keep(&pool, "vm", 0, 1), 1);
    // The file has nothing left to reserve beyond that.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![7; 3 * SECTION as usize], SECTION).unwrap();
    let refused = pool.reserve("vm", 1, 2 * SECTION).unwrap_err();
    assert!(matches!(refused, Error::Dry { .. }), "{refused}");
    let usage = pool.usage();
    assert_eq!(usage.guests["vm"].ready_bytes(), 0);
    assert_eq!(usage.used_bytes, allocated(&path), "each section counts once");
}

#[test]
fn what_the_host_can_not_give_lies_ready_for_nobody() {
    // The host has only half of a ninth section.
    let Some(mount) = TestMount::new(c"tmpfs", "size=35M") else { return };
    let (folder, other) = (mount.folder(), mount.folder());
    let (pool, others) = (folder.pool(8), other.pool(8));
    for guest in ["vm", "late"] {
        pool.create(guest, DEVICE, 8 * SECTION).unwrap();
    }
    let path = pool.path("vm", DEVICE).unwrap();
    others.create("first", GuestFile::Boot, 6 * SECTION).unwrap();
    assert_eq!(keep(&pool, "vm", 0, 8), 2);
    assert_eq!((allocated(&path), counts(&pool)), (2 * SECTION, (0, 8)));
    assert_eq!(keep(&pool, "late", 0, 8), 0);
    // All memory that is not ready is idle, and can be used once the host has it.
    others.clear("first").unwrap();
    assert_eq!(keep(&pool, "late", 0, 8), 6);
    assert_eq!(pool.reserve("vm", 1, 2 * SECTION).unwrap(), 2 * SECTION);
    assert_eq!(allocated(&path), 2 * SECTION);
}

#[test]
fn a_guest_that_was_reset_has_nothing_ready_when_it_is_settled() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 2 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    (0..2).for_each(|section| mapping.write(section, section + 1));
    assert_eq!(keep(&pool, "vm", 2, 2), 2);
    // QEMU empties the file, and the guest plugs as much again.
    mapping.punch(0, 8 * SECTION);
    mapping.allocate(0, 2 * SECTION);
    (0..2).for_each(|section| mapping.write(section, section + 3));
    assert_eq!(pool.settle_device("vm", 1, 2 * SECTION).unwrap().set_aside_bytes, 2 * SECTION);
    assert_eq!(pool.usage().guests["vm"].ready_bytes(), 0);
    assert_eq!(pool.reserve("vm", 1, SECTION).unwrap(), 3 * SECTION);
    assert_eq!(holes(&mapping, &path, 0, 3 * SECTION), 0, "the guest plugs there");
}

#[test]
fn what_a_guest_has_is_never_more_than_its_file() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    pool.create("vm", DEVICE, 4 * SECTION).unwrap();
    pool.reserve("vm", 1, 4 * SECTION).unwrap();
    let settled = pool.settle_device("vm", 1, 6 * SECTION).unwrap();
    assert_eq!((settled.released_bytes, settled.set_aside_bytes), (0, 4 * SECTION));
    assert_eq!(counts(&pool), (4, 4));
}

#[test]
fn a_guest_that_plugged_elsewhere_has_holes_below_once_it_is_settled() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 2 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    mapping.allocate(2 * SECTION, 2 * SECTION);
    (2..4).for_each(|section| mapping.write(section, section));
    // The former reservation is released, but as much is reserved, because the guest has as much.
    let settled = pool.settle_device("vm", 1, 2 * SECTION).unwrap();
    assert_eq!((settled.released_bytes, settled.set_aside_bytes), (0, 2 * SECTION));
    assert_eq!(allocated(&path), 2 * SECTION);
    assert_eq!(pool.reserve("vm", 1, SECTION).unwrap(), 3 * SECTION);
    assert_eq!(holes(&mapping, &path, 0, SECTION), 0, "the guest plugs there next");
}
