//! The same on huge pages, if available: all in one test, because it changes the host's number of them.

use spillway_sections::{Backing, Error, GuestFile, Pool, Settings};

use crate::common::{HugePages, MIB, Mapping, SECTION, total_huge_pages};
use crate::{life, model, ready, unplugged};

/// Pages of 8 sections.
const PAGES: u64 = 8 * SECTION / (2 * MIB);

#[test]
fn on_hugetlbfs() {
    let Some(pages) = HugePages::take(PAGES, "") else { return };
    let backing = pages.folder().pool(8).backing();
    assert_eq!(backing, Backing::Hugetlbfs { page_bytes: 2 * MIB });
    if pages.are_all() {
        too_few_huge_pages(&pages);
        pages_that_somebody_else_takes(&pages);
        pages_that_are_promised_to_somebody_else(&pages);
    }
    life::a_guest_boots_grows_shrinks_and_goes(&pages.folder());
    life::what_comes_back_is_zero_for_the_next(&pages.folder());
    life::files_in_use_stay(&pages.folder());
    life::what_there_is_is_read_back(&pages.folder());
    ready::a_guest_that_grows_finds_its_sections_ready(&pages.folder());
    ready::what_is_ready_lies_where_the_guest_grows(&pages.folder());
    ready::others_get_what_lies_ready(&pages.folder());
    ready::a_guest_that_was_reset_has_nothing_ready(&pages.folder());
    unplugged::what_a_killed_daemon_had_set_aside_is_given_back(&pages.folder());
    unplugged::what_is_plugged_stays(&pages.folder());
    unplugged::where_plugged_sections_are_untouched_nothing_goes(&pages.folder());
    unplugged::what_lies_ready_stays(&pages.folder());
    model::check(8, || pages.folder());
    drop(pages);
    a_mount_with_a_limit();
}

fn too_few_huge_pages(pages: &HugePages) {
    let folder = pages.folder();
    let line = Pool::open(&folder.settings(11)).unwrap_err().to_string();
    let expected = format!(
        "the section pool takes 22 more huge pages of 2 MiB, {PAGES} are free: write {} to \
         /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        total_huge_pages() + 6
    );
    assert_eq!(line, expected);
    // Memory that the pool already holds is not required again.
    folder.pool(8).create("vm", GuestFile::Boot, 4 * SECTION).unwrap();
    folder.pool(8);
    let error = Pool::open(&folder.settings(9)).unwrap_err();
    let Error::HugePages { wanted, free, total, .. } = error else { panic!("{error}") };
    assert_eq!((wanted, free, total), (10, 8, total_huge_pages() + 2));
}

fn pages_that_somebody_else_takes(pages: &HugePages) {
    let (folder, other) = (pages.folder(), pages.folder());
    let pool = folder.pool(8);
    pool.create("vm", GuestFile::Device(1), 8 * SECTION).unwrap();
    other.pool(2).create("vm", GuestFile::Boot, 2 * SECTION).unwrap();
    let refused = pool.reserve("vm", 1, 7 * SECTION).unwrap_err();
    assert!(matches!(refused, Error::Dry { free_bytes, .. } if free_bytes == 6 * SECTION));
    assert_eq!(pool.usage().used_bytes, 0);
    pool.reserve("vm", 1, 6 * SECTION).unwrap();
}

fn pages_that_are_promised_to_somebody_else(pages: &HugePages) {
    let (folder, other) = (pages.folder(), pages.folder());
    let pool = folder.pool(8);
    let device = GuestFile::Device(1);
    pool.create("vm", device, 8 * SECTION).unwrap();
    let path = other.pool(2).create("vm", device, 2 * SECTION).unwrap();
    let _promised = Mapping::reserving(&path);
    let refused = pool.reserve("vm", 1, 7 * SECTION).unwrap_err();
    assert!(matches!(refused, Error::Dry { free_bytes, .. } if free_bytes == 6 * SECTION));
    pool.reserve("vm", 1, 6 * SECTION).unwrap();
}

fn a_mount_with_a_limit() {
    let Some(pages) = HugePages::take(PAGES, ",size=16M") else { return };
    let folder = pages.folder();
    let error = Pool::open(&folder.settings(5)).unwrap_err();
    assert!(matches!(error, Error::MountTooSmall { room_bytes, .. } if room_bytes == 16 * MIB));
    assert!(error.to_string().contains("has room for 16 MiB more, the section pool takes 20 MiB"));
    let settings =
        Settings { section_bytes: 16 * MIB, capacity_bytes: 16 * MIB, ..folder.settings(1) };
    Pool::open(&settings).unwrap().create("vm", GuestFile::Boot, 16 * MIB).unwrap();
}
