//! Counted memory from elsewhere, over a restart.

use std::fs;
use std::sync::Arc;

use crate::common::{SECTION, TestFolder, TestMount, allocated};
use spillway_sections::{Error, GuestFile, Pool};

fn counted(pool: &Pool) -> (u64, u64) {
    let guest = &pool.usage().guests["vm"];
    (guest.boot_bytes, guest.devices.get(&1).map_or(0, |device| device.set_aside_bytes))
}

#[test]
fn what_comes_from_elsewhere_counts_and_takes_nothing() {
    let folder = TestFolder::shm();
    let pool = folder.pool(8);
    // Boot memory of libvirt can be any number of KiB.
    pool.count("vm", 0, 2 * SECTION - 1024).unwrap();
    assert_eq!(pool.count_more("vm", 1, SECTION).unwrap(), SECTION);
    assert_eq!(pool.count_more("vm", 1, 2 * SECTION).unwrap(), 3 * SECTION);
    assert_eq!(
        (counted(&pool), pool.usage().free_bytes),
        ((2 * SECTION, 3 * SECTION), 3 * SECTION)
    );
    let path = pool.path("vm", GuestFile::Counted(1)).unwrap();
    assert_eq!((allocated(&path), fs::metadata(&path).unwrap().len()), (0, 3 * SECTION));
    // Another guest gets the rest.
    let device = GuestFile::Device(1);
    pool.create("other", device, 8 * SECTION).unwrap();
    let refused = pool.reserve("other", 1, 4 * SECTION).unwrap_err();
    assert_eq!(refused.to_string(), "the section pool is dry: 16 MiB asked, 12 MiB free");
    let refused = pool.count_more("vm", 1, 4 * SECTION).unwrap_err();
    assert_eq!(refused.to_string(), "the section pool is dry: 16 MiB asked, 12 MiB free");
    assert_eq!(counted(&pool).1, 3 * SECTION);
    pool.count("vm", 1, SECTION).unwrap();
    pool.reserve("other", 1, 5 * SECTION).unwrap();
    assert_eq!(pool.usage().free_bytes, 0);
}

#[test]
fn a_pool_opened_again_knows_and_an_end_is_forgotten() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    pool.count("vm", 0, 2 * SECTION).unwrap();
    // A guest's existing memory counts, even beyond the pool's capacity.
    pool.count("vm", 1, 4 * SECTION).unwrap();
    drop(pool);
    let pool = folder.pool(4);
    assert_eq!((counted(&pool), pool.usage().free_bytes), ((2 * SECTION, 4 * SECTION), 0));
    assert_eq!(pool.empty_devices("vm").unwrap(), 0, "only who counts knows when it ends");
    assert_eq!(counted(&pool), (2 * SECTION, 4 * SECTION));
    pool.count("vm", 1, 0).unwrap();
    assert_eq!(counted(&pool), (2 * SECTION, 0));
    pool.forget_counted("vm").unwrap();
    assert_eq!((pool.usage().used_bytes, pool.usage().guests.len()), (0, 0));
    assert!(!folder.dir().join("vm").exists());
    pool.forget_counted("vm").unwrap();
    pool.count("vm", 3, 0).unwrap();
    assert!(pool.count("vm", 17, SECTION).is_err());
    assert!(pool.count("..", 0, SECTION).is_err());
}

#[test]
fn what_a_guest_has_from_elsewhere_has_its_room_already() {
    let Some(mount) = TestMount::new(c"tmpfs", "size=33M") else { return };
    let (folder, other) = (mount.folder(), mount.folder());
    let pool = folder.pool(8);
    pool.count("vm", 1, 4 * SECTION).unwrap();
    // The domain's own memory, on the same mount.
    let domain = other.pool(4);
    domain.create("domain", GuestFile::Boot, 4 * SECTION).unwrap();
    // There is room for the request, but not for the domain's total after it.
    assert_eq!(pool.count_more("vm", 1, 3 * SECTION).unwrap(), 7 * SECTION);
    pool.count("vm", 1, 4 * SECTION).unwrap();
    drop(pool);
    let pool = folder.pool(8);
    assert_eq!(counted(&pool), (0, 4 * SECTION));
}

#[test]
fn what_the_host_has_no_room_for_is_not_counted() {
    let Some(mount) = TestMount::new(c"tmpfs", "size=33M") else { return };
    let (folder, other) = (mount.folder(), mount.folder());
    let pool = folder.pool(8);
    pool.count("vm", 1, SECTION).unwrap();
    // Another pool has taken most of the mount.
    let taken = other.pool(6);
    taken.create("other", GuestFile::Boot, 6 * SECTION).unwrap();
    for (guest, used) in [("vm", SECTION), ("new", SECTION)] {
        let refused = pool.count_more(guest, 1, 4 * SECTION).unwrap_err();
        let is_hosts = |free| free < 4 * SECTION;
        assert!(
            matches!(refused, Error::Dry { free_bytes, .. } if is_hosts(free_bytes)),
            "{refused}"
        );
        assert_eq!((counted(&pool).1, pool.usage().used_bytes), (SECTION, used), "{guest}");
        assert!(!pool.usage().guests.contains_key("new"));
    }
    assert_eq!(pool.count_more("vm", 1, SECTION).unwrap(), 2 * SECTION);
}

#[test]
fn a_domain_gets_what_lies_ready_for_others() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    pool.create("other", GuestFile::Device(1), 4 * SECTION).unwrap();
    while pool.keep_ready("other", 1, 0, 2 * SECTION).unwrap() {}
    assert_eq!(pool.usage().free_bytes, 4 * SECTION);
    assert_eq!(pool.count_more("vm", 1, 3 * SECTION).unwrap(), 3 * SECTION);
}

#[test]
fn what_lies_ready_for_another_guest_comes_back_for_memory_from_elsewhere() {
    let folder = TestFolder::shm();
    let pool = Arc::new(folder.pool(2));
    pool.create("guest", GuestFile::Device(1), 2 * SECTION).unwrap();
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // More guests than locks: some share the lock of the guest that gives.
        for number in 0..400 {
            let domain = format!("domain-{number}");
            while pool.keep_ready("guest", 1, 0, 2 * SECTION).unwrap() {}
            assert_eq!(pool.usage().guests["guest"].ready_bytes(), 2 * SECTION);
            assert_eq!(pool.count_more(&domain, 1, 2 * SECTION).unwrap(), 2 * SECTION);
            assert_eq!(pool.usage().guests["guest"].ready_bytes(), 0);
            pool.forget_counted(&domain).unwrap();
        }
        told.send(()).unwrap();
    });
    let ended = hears.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(ended, Ok(()), "none waits for itself");
}
