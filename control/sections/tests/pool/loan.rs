//! Lent memory, which returns when a guest needs it.

use std::sync::{Arc, Mutex, Weak};

use crate::common::{SECTION, TestFolder, TestMount};
use spillway_sections::{Borrower, Error, GuestFile, Pool};

const DEVICE: GuestFile = GuestFile::Device(1);

/// Returns the requested memory except what it keeps, and records the requests.
#[derive(Debug)]
struct Lent {
    pool: Weak<Pool>,
    keeps: u64,
    asked: Mutex<Vec<u64>>,
}

impl Borrower for Lent {
    fn give_back(&self, bytes: u64) {
        let pool = self.pool.upgrade().unwrap();
        self.asked.lock().unwrap().push(bytes / SECTION);
        let left = pool.lent_bytes().saturating_sub(bytes).max(self.keeps);
        assert_eq!(pool.lend(left), left);
    }
}

impl Lent {
    /// The borrower of a pool.
    fn of(pool: &Arc<Pool>, keeps: u64) -> Arc<Self> {
        let it = Arc::new(Self { pool: Arc::downgrade(pool), keeps, asked: Mutex::default() });
        pool.set_borrower(it.clone());
        it
    }

    fn asked(&self) -> Vec<u64> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// Sections that are lent, and sections that are free in all.
fn counts(pool: &Pool) -> (u64, u64) {
    let usage = pool.usage();
    (usage.lent_bytes / SECTION, usage.free_bytes / SECTION)
}

#[test]
fn what_is_lent_comes_back_as_far_as_a_guest_needs_it() {
    let folder = TestFolder::shm();
    let pool = Arc::new(folder.pool(8));
    let borrower = Lent::of(&pool, 0);
    pool.create("a", GuestFile::Boot, 2 * SECTION).unwrap();
    assert_eq!(pool.lend(100 * SECTION), 6 * SECTION, "no more than is idle");
    assert_eq!(counts(&pool), (6, 6), "it is free all the same");
    assert_eq!(pool.lend(5 * SECTION), 5 * SECTION);
    // One section is idle: two must return.
    pool.create("a", DEVICE, 6 * SECTION).unwrap();
    assert_eq!(pool.reserve("a", 1, 3 * SECTION).unwrap(), 3 * SECTION);
    assert_eq!((borrower.asked(), counts(&pool)), (vec![2], (3, 3)));
    // Boot memory and counted memory recall loans too.
    pool.create("b", GuestFile::Boot, SECTION).unwrap();
    assert_eq!((borrower.asked(), counts(&pool)), (vec![1], (2, 2)));
    // More than there is: the lent memory returns, and the request is refused.
    let refused = pool.reserve("a", 1, 3 * SECTION);
    assert!(matches!(refused, Err(Error::Dry { free_bytes, .. }) if free_bytes == 2 * SECTION));
    assert_eq!((borrower.asked(), counts(&pool)), (vec![2], (0, 2)));
    assert_eq!(pool.reserve("a", 1, 2 * SECTION).unwrap(), 5 * SECTION);
    assert_eq!((borrower.asked(), counts(&pool)), (vec![], (0, 0)), "nobody is asked for nothing");
    assert_eq!(pool.lend(SECTION), 0);
}

#[test]
fn a_borrower_that_keeps_it_has_the_guest_refused_and_nothing_changed() {
    let folder = TestFolder::shm();
    let pool = Arc::new(folder.pool(4));
    let borrower = Lent::of(&pool, 2 * SECTION);
    pool.create("a", DEVICE, 4 * SECTION).unwrap();
    assert_eq!(pool.lend(4 * SECTION), 4 * SECTION);
    let refused = pool.reserve("a", 1, 3 * SECTION);
    assert!(matches!(refused, Err(Error::Dry { free_bytes, .. }) if free_bytes == 2 * SECTION));
    assert_eq!((borrower.asked(), counts(&pool)), (vec![3], (2, 4)));
    assert_eq!(pool.usage().used_bytes, 0);
    assert_eq!(pool.reserve("a", 1, 2 * SECTION).unwrap(), 2 * SECTION);
}

#[test]
fn what_lies_ready_for_others_is_taken_before_what_is_lent() {
    let folder = TestFolder::shm();
    let pool = Arc::new(folder.pool(8));
    let borrower = Lent::of(&pool, 0);
    for guest in ["a", "b"] {
        pool.create(guest, DEVICE, 8 * SECTION).unwrap();
    }
    while pool.keep_ready("a", 1, 0, 2 * SECTION).unwrap() {}
    assert_eq!(pool.lend(8 * SECTION), 6 * SECTION);
    assert!(!pool.keep_ready("b", 1, 0, SECTION).unwrap(), "nobody is asked for that");
    assert_eq!((borrower.asked(), pool.usage().guests["b"].ready_bytes()), (vec![], 0));
    pool.reserve("b", 1, 3 * SECTION).unwrap();
    assert_eq!((borrower.asked(), counts(&pool)), (vec![1], (5, 5)));
    assert_eq!(pool.usage().guests["a"].ready_bytes(), 0);
}

#[test]
fn a_file_that_is_there_asks_nobody_and_one_from_elsewhere_does() {
    let folder = TestFolder::shm();
    let pool = Arc::new(folder.pool(4));
    let borrower = Lent::of(&pool, 0);
    pool.create("a", GuestFile::Boot, 2 * SECTION).unwrap();
    assert_eq!(pool.lend(2 * SECTION), 2 * SECTION);
    pool.create("a", GuestFile::Boot, 2 * SECTION).unwrap();
    assert_eq!(borrower.asked(), vec![], "it has its memory");
    assert_eq!(pool.count_more("b", 1, SECTION).unwrap(), SECTION);
    assert_eq!((borrower.asked(), counts(&pool)), (vec![1], (1, 1)));
    let refused = pool.count_more("c", 1, 2 * SECTION);
    assert!(matches!(refused, Err(Error::Dry { free_bytes, .. }) if free_bytes == SECTION));
    assert!(!pool.usage().guests.contains_key("c"), "nothing is left of it");
}

#[test]
fn what_lies_ready_for_the_guest_itself_need_not_come_back() {
    let folder = TestFolder::shm();
    let pool = Arc::new(folder.pool(8));
    let borrower = Lent::of(&pool, 0);
    pool.create("a", DEVICE, 8 * SECTION).unwrap();
    while pool.keep_ready("a", 1, 0, 2 * SECTION).unwrap() {}
    assert_eq!(pool.lend(8 * SECTION), 6 * SECTION);
    assert_eq!(pool.reserve("a", 1, 3 * SECTION).unwrap(), 3 * SECTION);
    assert_eq!((borrower.asked(), counts(&pool)), (vec![1], (5, 5)));
}

/// Holds its lent memory in a file of another pool on the same mount.
#[derive(Debug)]
struct Elsewhere {
    pool: Weak<Pool>,
    taken: Pool,
}

impl Borrower for Elsewhere {
    fn give_back(&self, bytes: u64) {
        self.taken.clear("store").unwrap();
        let pool = self.pool.upgrade().unwrap();
        pool.lend(pool.lent_bytes() - bytes);
    }
}

#[test]
fn the_host_is_asked_for_room_when_what_was_lent_has_come_back() {
    let Some(mount) = TestMount::new(c"tmpfs", "size=33M") else { return };
    let (folder, other) = (mount.folder(), mount.folder());
    let pool = Arc::new(folder.pool(8));
    let taken = other.pool(6);
    taken.create("store", GuestFile::Boot, 6 * SECTION).unwrap();
    pool.set_borrower(Arc::new(Elsewhere { pool: Arc::downgrade(&pool), taken }));
    assert_eq!(pool.lend(6 * SECTION), 6 * SECTION);
    assert_eq!(pool.count_more("domain", 1, 4 * SECTION).unwrap(), 4 * SECTION);
    assert_eq!(counts(&pool), (4, 4));
}

#[test]
fn a_loan_of_before_counts_although_guests_have_the_memory() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    pool.create("a", GuestFile::Boot, 3 * SECTION).unwrap();
    pool.note_lent(2 * SECTION);
    assert_eq!(counts(&pool), (2, 1));
    let refused = pool.create("a", DEVICE, SECTION).and_then(|_| pool.reserve("a", 1, SECTION));
    assert!(matches!(refused, Err(Error::Dry { free_bytes: 0, .. })), "nobody gives it back");
    // The guest holds one of the two lent sections.
    let pool = Arc::new(pool);
    let borrower = Lent::of(&pool, 0);
    assert_eq!(pool.reserve("a", 1, SECTION).unwrap(), SECTION);
    assert_eq!((borrower.asked(), counts(&pool)), (vec![2], (0, 0)));
    pool.empty_devices("a").unwrap();
    pool.note_lent(2 * SECTION);
    assert_eq!(pool.lend(2 * SECTION), 2 * SECTION, "no more");
    assert_eq!(pool.lend(0), 0);
    assert_eq!(pool.lend(2 * SECTION), SECTION);
}
