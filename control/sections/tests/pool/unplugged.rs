//! Memory that a killed daemon or an interrupted order had reserved, and no guest has plugged.

use crate::common::{MIB, Mapping, SECTION, TestFolder, allocated};
use spillway_sections::{GuestFile, Pool};

const DEVICE: GuestFile = GuestFile::Device(1);
const UNIT: u64 = 2 * MIB;

fn settled(pool: &Pool, sections: u64) -> (u64, u64) {
    let settled = pool.settle_device("vm", 1, sections * SECTION).unwrap();
    (settled.released_bytes, settled.set_aside_bytes)
}

/// Finds any part of a reservation that a killed daemon had made; the pool has 8 sections.
pub fn what_a_killed_daemon_had_set_aside_is_given_back(folder: &TestFolder) {
    for units in 0..=3 * SECTION / UNIT {
        let pool = folder.pool(8);
        let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
        pool.reserve("vm", 1, 3 * SECTION).unwrap();
        let mapping = Mapping::of(&path);
        (0..3).for_each(|section| mapping.write(section, section + 1));
        mapping.punch(SECTION, SECTION);
        assert_eq!(settled(&pool, 2), (SECTION, 2 * SECTION));
        drop(pool);
        // The holes are the section between the other two, and everything above.
        let holes = (SECTION..2 * SECTION).chain(3 * SECTION..8 * SECTION);
        for at in holes.step_by(UNIT as usize).take(units as usize) {
            mapping.allocate(at, UNIT);
        }
        let pool = folder.pool(8);
        assert_eq!(pool.usage().used_bytes, 2 * SECTION + units * UNIT);
        assert_eq!(settled(&pool, 2), (units * UNIT, 2 * SECTION), "{units} units");
        assert_eq!(allocated(&path), 2 * SECTION);
        assert!(mapping.reads(0, 1) && mapping.reads(2, 3));
        // The next reservation lies where the guest plugs next.
        pool.reserve("vm", 1, SECTION).unwrap();
        assert_eq!(mapping.take(SECTION, SECTION), SECTION);
        drop(mapping);
        pool.clear("vm").unwrap();
    }
}

/// Plugged memory stays, whatever its content; the pool has 8 sections.
pub fn what_is_plugged_stays(folder: &TestFolder) {
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 6 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    // QEMU has touched it, and the guest has written only zeros.
    (0..2).for_each(|section| mapping.write(section, 0));
    mapping.write(4, 5);
    assert_eq!(settled(&pool, 3), (3 * SECTION, 3 * SECTION));
    assert!(mapping.reads(4, 5));
    assert_eq!([0, 1, 4].map(|section| mapping.take(section * SECTION, SECTION)), [SECTION; 3]);
    drop(mapping);
    // Another QEMU took it over, and maps unused pages only when the guest uses them.
    pool.settle_device("vm", 1, 0).unwrap();
    pool.reserve("vm", 1, 2 * SECTION).unwrap();
    Mapping::of(&path).write(0, 7);
    assert_eq!(settled(&pool, 1), (SECTION, SECTION));
    assert!(Mapping::of(&path).reads(0, 7));
    pool.clear("vm").unwrap();
}

/// If fewer sections were touched than QEMU reports as plugged, nothing is released; the pool has 8 sections.
pub fn where_plugged_sections_are_untouched_nothing_goes(folder: &TestFolder) {
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 4 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    mapping.write(1, 1);
    assert_eq!(settled(&pool, 2), (0, 4 * SECTION));
    mapping.write(3, 1);
    assert_eq!(settled(&pool, 2), (2 * SECTION, 2 * SECTION));
    drop(mapping);
    pool.clear("vm").unwrap();
}

/// Ready memory stays in place; the pool has 8 sections.
pub fn what_lies_ready_stays(folder: &TestFolder) {
    let pool = folder.pool(8);
    let path = pool.create("vm", DEVICE, 8 * SECTION).unwrap();
    pool.reserve("vm", 1, 2 * SECTION).unwrap();
    let mapping = Mapping::of(&path);
    (0..2).for_each(|section| mapping.write(section, 1));
    while pool.keep_ready("vm", 1, 2 * SECTION, 2 * SECTION).unwrap() {}
    assert_eq!(settled(&pool, 2), (0, 2 * SECTION));
    assert_eq!(
        (pool.usage().guests["vm"].ready_bytes(), allocated(&path)),
        (2 * SECTION, 4 * SECTION)
    );
    // There is a new hole below it: the guest plugs that first.
    mapping.punch(0, SECTION);
    assert_eq!(settled(&pool, 1), (SECTION, SECTION));
    pool.reserve("vm", 1, SECTION).unwrap();
    assert_eq!(mapping.take(0, SECTION), SECTION);
    drop(mapping);
    pool.clear("vm").unwrap();
}

#[test]
fn on_tmpfs() {
    what_a_killed_daemon_had_set_aside_is_given_back(&TestFolder::shm());
    what_is_plugged_stays(&TestFolder::shm());
    where_plugged_sections_are_untouched_nothing_goes(&TestFolder::shm());
    what_lies_ready_stays(&TestFolder::shm());
}
