//! A loan between a pool in /dev/shm and a store with a disk.

use spillway_sections::{GuestFile, Settings};
use spillway_store::{
    Backing as Memory, ClientConfig, Config, DiskConfig, Get, Key, PAGE_BYTES, PoolId, PoolSpec,
    Put,
};
use spillway_test_support::pages::incompressible;
use spillway_test_support::wait::{until, until_equal};

use super::*;

const MIB: u64 = 1 << 20;
const SECTION: u64 = 2 * MIB;
const OWN: u64 = 16 * MIB;
const LENT: u64 = 32 * MIB;
const DEVICE: GuestFile = GuestFile::Device(1);

#[test]
fn what_is_set_aside_counts_neither_as_fixed_nor_as_its_own() {
    let it = Lent::new(Some(disk(128 * MIB)));
    let client = it.store.clients()[0].id;
    let make = |pages| it.store.create_reserved_pool(client, PoolSpec::PERSISTENT, pages);
    make((OWN - 2 * MIB) / PAGE_BYTES as u64).unwrap();
    assert_eq!(it.look(), (16, LENT), "as much as 16 times the rest");
    make(MIB / PAGE_BYTES as u64 - 192).unwrap();
    assert!((7..16).contains(&it.look().0), "{:?}", it.counts());
}

/// A pool of 24 sections, and a store that may be lent 16 of them.
struct Lent {
    _folder: tempfile::TempDir,
    pool: Arc<Pool>,
    store: Arc<Store>,
    loan: Arc<Loan>,
    kept: PoolId,
}

fn store(disk: Option<DiskConfig>) -> (Arc<Store>, PoolId) {
    let config =
        Config { backing: Memory::Memfd, compress: false, disk, ..Config::embedded(OWN + LENT) };
    let store = Store::open(Config { makes_room: true, ..config }).unwrap();
    store.set_capacity(OWN, 0);
    let client = store.add_client(ClientConfig::default()).unwrap();
    let kept = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    (Arc::new(store), kept)
}

fn disk(bytes: u64) -> DiskConfig {
    // Beside the test's own program, so that it is no tmpfs.
    DiskConfig::new(std::env::current_exe().unwrap().parent().unwrap().to_owned(), bytes)
}

/// A store after a restart, that holds eight sections more than its own: with how many pages.
fn fuller_store() -> (Arc<Store>, PoolId, u64) {
    let (store, kept) = store(Some(disk(128 * MIB)));
    store.set_capacity(OWN, LENT);
    let pages = (OWN + 8 * SECTION) / PAGE_BYTES as u64;
    (0..pages).for_each(|number| {
        assert_eq!(store.put(kept, key(number), &incompressible(number)), Put::Stored)
    });
    store.set_capacity(OWN, 0);
    (store, kept, pages)
}

impl Lent {
    fn new(disk: Option<DiskConfig>) -> Self {
        let (store, kept) = store(disk);
        Self::of(store, kept, |_| {})
    }

    fn pool() -> (tempfile::TempDir, Arc<Pool>) {
        let folder = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
        let settings = Settings {
            dir: folder.path().join("pool"),
            capacity_bytes: 24 * SECTION,
            section_bytes: SECTION,
            group: None,
        };
        let pool = Arc::new(Pool::open(&settings).unwrap());
        (folder, pool)
    }

    fn of(store: Arc<Store>, kept: PoolId, fill: impl Fn(&Pool)) -> Self {
        let (folder, pool) = Self::pool();
        fill(&pool);
        let room = Room { own_bytes: OWN, lent_bytes: LENT };
        let loan = Loan::new(&pool, &store, room).unwrap().unwrap();
        Self { _folder: folder, pool, store, loan, kept }
    }

    fn look(&self) -> (u64, u64) {
        self.loan.look(&self.pool, 0);
        self.counts()
    }

    /// Sections that are lent, and bytes that the store may take beyond its own: they are the same.
    fn counts(&self) -> (u64, u64) {
        (self.pool.lent_bytes() / SECTION, self.store.capacity_bytes() - OWN)
    }

    fn fill(&self, pages: u64) {
        for number in 0..pages {
            assert_eq!(
                self.store.put(self.kept, key(number), &incompressible(number)),
                Put::Stored,
                "{number}"
            );
        }
    }

    fn assert_all(&self, pages: u64) {
        self.assert_each(1, pages);
    }

    /// Every page whose number is a multiple of `step`.
    fn assert_each(&self, step: usize, pages: u64) {
        let mut value = [0; PAGE_BYTES];
        for number in (0..pages).step_by(step) {
            let got = self.store.get(self.kept, key(number), &mut value);
            assert!(
                matches!(got, Ok(Get::Hit(PAGE_BYTES))) && value == incompressible(number),
                "{number}: {got:?}"
            );
        }
    }

    /// Nothing is lent for a while after a guest took some back: `took` began then. What a look makes of it within that while,
    /// and after it.
    fn rests(&self, took: Instant) -> [(u64, u64); 2] {
        assert!(self.loan.state().rests_until >= took + REST);
        let looks = [Instant::now() + Duration::from_secs(3600), Instant::now()];
        looks.map(|until| {
            self.loan.state().rests_until = until;
            self.look()
        })
    }
}

fn key(number: u64) -> Key {
    Key::new(number / 64, number as u32 % 64)
}

#[test]
fn the_store_has_what_guests_leave_and_gives_back_what_they_need() {
    let it = Lent::new(Some(disk(128 * MIB)));
    assert_eq!(it.counts(), (0, 0));
    assert_eq!(it.look(), (16, LENT), "as much as it may be lent");
    it.pool.create("a", GuestFile::Boot, 12 * SECTION).unwrap();
    assert_eq!(it.counts(), (12, 12 * SECTION), "boot memory takes of it what is not idle");
    let pages = (OWN + 10 * SECTION) / PAGE_BYTES as u64;
    it.fill(pages);
    assert!(it.store.memory_bytes() > OWN + 9 * SECTION);
    it.pool.create("a", DEVICE, 12 * SECTION).unwrap();
    let took = Instant::now();
    assert_eq!(it.pool.reserve("a", 1, 8 * SECTION).unwrap(), 8 * SECTION);
    assert_eq!(it.counts(), (4, 4 * SECTION));
    assert!(it.store.memory_bytes() <= OWN + 4 * SECTION);
    it.assert_all(pages);
    it.pool.empty_devices("a").unwrap();
    let looks = it.rests(took);
    assert_eq!(looks, [(4, 4 * SECTION), (12, 12 * SECTION)], "the next need is not to wait");
    it.assert_all(pages);
}

#[test]
fn what_is_to_lie_ready_for_guests_is_not_lent() {
    let it = Lent::new(Some(disk(128 * MIB)));
    it.pool.create("a", GuestFile::Boot, 12 * SECTION).unwrap();
    it.pool.create("a", DEVICE, 12 * SECTION).unwrap();
    it.loan.look(&it.pool, 3 * SECTION);
    assert_eq!(it.counts(), (9, 9 * SECTION));
    while it.pool.keep_ready("a", 1, 0, 3 * SECTION).unwrap() {}
    it.loan.look(&it.pool, 3 * SECTION);
    assert_eq!(
        (it.counts(), it.pool.usage().guests["a"].ready_bytes()),
        ((9, 9 * SECTION), 3 * SECTION)
    );
    // More is to lie ready: the store gives it back in between.
    it.loan.look(&it.pool, 5 * SECTION);
    assert_eq!(it.counts(), (7, 7 * SECTION));
    while it.pool.keep_ready("a", 1, 0, 5 * SECTION).unwrap() {}
    it.loan.look(&it.pool, 5 * SECTION);
    assert_eq!(
        (it.counts(), it.pool.usage().guests["a"].ready_bytes()),
        ((7, 7 * SECTION), 5 * SECTION)
    );
}

#[test]
fn what_could_go_nowhere_is_lent_nothing() {
    let it = Lent::new(None);
    let pages = OWN / 2 / PAGE_BYTES as u64;
    it.fill(pages + 1);
    assert_eq!(it.look(), (0, 0), "more than half of its own");
    assert!(it.store.flush(it.kept, key(pages)));
    assert_eq!(it.look(), (16, LENT));
    it.fill(pages / 2 * 3);
    assert_eq!(it.look(), (16, LENT), "three quarters");
    it.fill(pages / 2 * 3 + 1);
    assert_eq!(it.look(), (0, 0), "and it has it all back");
    it.assert_all(pages / 2 * 3 + 1);
    // A disk takes them.
    let it = Lent::new(Some(disk(16 * MIB)));
    it.fill(pages * 3 / 2 + 1);
    assert_eq!(it.look(), (16, LENT));
}

#[test]
fn what_was_said_of_a_guest_is_no_reason_not_to_say_that_nothing_is_lent() {
    let it = Lent::new(None);
    it.loan.state().said = Some(Refused::Kept);
    it.fill(OWN / 2 / PAGE_BYTES as u64 + 1);
    assert_eq!(it.look(), (0, 0));
    assert_eq!(it.loan.state().said, Some(Refused::Fixed));
    assert!(it.store.flush(it.kept, key(0)));
    assert_eq!((it.look(), it.loan.state().said), ((16, LENT), None));
    // And the other way round: a loan that goes on does not hide that a guest was refused.
    it.loan.state().said = Some(Refused::Kept);
    it.look();
    assert_eq!(it.loan.state().said, Some(Refused::Kept));
}

#[test]
fn a_store_that_cant_give_back_keeps_the_rest_and_the_guest_is_refused() {
    let it = Lent::new(Some(disk(4 * MIB)));
    assert_eq!(it.look(), (16, LENT));
    // Between two looks it takes more than there is room for below.
    let pages = (OWN + 12 * SECTION) / PAGE_BYTES as u64 - 200;
    it.fill(pages);
    it.pool.create("a", DEVICE, 24 * SECTION).unwrap();
    let began = Instant::now();
    it.pool.reserve("a", 1, 20 * SECTION).unwrap_err();
    assert!(began.elapsed() < GIVE_BACK_MAX, "it has nothing to wait for");
    let lent_bytes = it.pool.lent_bytes();
    assert_eq!(it.store.capacity_bytes() - OWN, lent_bytes);
    assert!(it.store.memory_bytes() <= OWN + lent_bytes, "what is lent is what it has");
    assert!((9 * SECTION..12 * SECTION).contains(&lent_bytes), "{lent_bytes}: its disk took some");
    it.assert_all(pages);
    assert_eq!(it.pool.usage().used_bytes, 0);
    let free = 24 * SECTION - lent_bytes;
    let whole = free - free % SECTION;
    assert_eq!(it.loan.state().said, Some(Refused::Kept));
    assert_eq!(it.pool.reserve("a", 1, whole).unwrap(), whole, "the rest can be had");
    // What comes back as it should is no reason to be silent the next time.
    (0..pages).for_each(|number| assert!(it.store.flush(it.kept, key(number))));
    it.loan.give_back(SECTION);
    assert_eq!(it.loan.state().said, None);
}

#[test]
fn guests_that_take_back_at_the_same_time_get_what_each_asked_for() {
    let it = Lent::new(None);
    assert_eq!(it.look(), (16, LENT));
    let state = it.loan.state();
    thread::scope(|scope| {
        let second = scope.spawn(|| it.loan.give_back(2 * SECTION));
        // It has come to where it waits for the first.
        thread::sleep(Duration::from_millis(200));
        assert!(it.loan.lower(&it.pool, 10 * SECTION, Instant::now() + GIVE_BACK_MAX));
        drop(state);
        second.join().unwrap();
    });
    assert_eq!(it.counts(), (8, 8 * SECTION));
}

#[test]
fn a_store_that_kept_some_is_asked_again_when_some_time_has_passed() {
    let it = Lent::new(Some(disk(4 * MIB)));
    assert_eq!(it.look(), (16, LENT));
    let pages = (OWN + 12 * SECTION) / PAGE_BYTES as u64 - 200;
    it.fill(pages);
    // More is to lie ready for guests than it can give back.
    let (ready_bytes, asked) = (20 * SECTION, Instant::now());
    it.loan.look(&it.pool, ready_bytes);
    let kept = it.counts();
    assert!((9..12).contains(&kept.0), "{kept:?}");
    assert!(it.loan.state().keeps_until >= asked + RETRY);
    it.loan.state().keeps_until = Instant::now() + Duration::from_secs(3600);
    (0..pages).for_each(|number| assert!(it.store.flush(it.kept, key(number))));
    it.loan.look(&it.pool, ready_bytes);
    assert_eq!(it.counts(), kept, "not yet");
    it.loan.state().keeps_until = Instant::now();
    it.loan.look(&it.pool, ready_bytes);
    assert_eq!(it.counts(), (4, 4 * SECTION));
    // One that gave all back is asked whenever more is needed.
    it.loan.look(&it.pool, ready_bytes + SECTION);
    assert_eq!(it.counts(), (3, 3 * SECTION));
}

#[test]
fn whole_sections_are_lent_and_what_lies_ready_for_several_is_not() {
    let it = Lent::new(None);
    for (guest, sections) in [("a", 5), ("b", 6)] {
        it.pool.create(guest, DEVICE, 8 * SECTION).unwrap();
        while it.pool.keep_ready(guest, 1, 0, sections * SECTION).unwrap() {}
    }
    // More lies ready than is wanted by now: it is not lent until it has been given back.
    it.loan.look(&it.pool, 4 * SECTION);
    assert_eq!(it.counts(), (13, 13 * SECTION));
    it.loan.look(&it.pool, 12 * SECTION + 1);
    assert_eq!(it.counts(), (11, 11 * SECTION));
    it.loan.look(&it.pool, 100 * SECTION);
    assert_eq!(it.counts(), (0, 0));
}

#[test]
fn a_slow_disk_keeps_a_guest_waiting_no_longer_than_it_may() {
    let it = Lent::new(Some(DiskConfig { delay_ns: 100_000_000, ..disk(128 * MIB) }));
    it.look();
    let pages = (OWN + 12 * SECTION) / PAGE_BYTES as u64 - 200;
    it.fill(pages);
    let began = Instant::now();
    // Some 190 writes, 8 at a time, take 2.4 s. A busy machine may begin them a second late.
    let limit = Duration::from_millis(1500);
    assert!(!it.loan.lower(&it.pool, 0, began + limit));
    let took = began.elapsed();
    assert!((limit..Duration::from_secs(30)).contains(&took), "{took:?}");
    let (lent, bytes) = it.counts();
    assert!((1..12).contains(&lent), "some came back, not all: {lent}");
    assert_eq!(bytes, it.pool.lent_bytes());
    assert!(it.store.memory_bytes() <= OWN + bytes + MIB);
    // Each read of a slow disk is slow.
    it.assert_each(211, pages);
}

#[test]
fn the_rest_begins_when_all_has_come_back_however_long_that_took() {
    let it = Lent::new(Some(DiskConfig { delay_ns: 40_000_000, ..disk(128 * MIB) }));
    it.look();
    it.fill((OWN + 12 * SECTION) / PAGE_BYTES as u64 - 200);
    let began = Instant::now();
    it.loan.give_back(16 * SECTION);
    // Some 190 writes of 40 ms, 8 at a time.
    let least = Duration::from_millis(300);
    assert!(it.loan.state().rests_until >= began + least + REST);
}

#[test]
fn after_a_restart_what_the_store_holds_counts_as_lent() {
    let (store, kept, pages) = fuller_store();
    let it = Lent::of(store, kept, |pool| {
        // A guest has grown meanwhile: that is more than there is.
        pool.create("a", GuestFile::Boot, 20 * SECTION).unwrap();
    });
    let lent_bytes = it.pool.lent_bytes();
    assert!(lent_bytes > 7 * SECTION, "{lent_bytes}");
    assert_eq!(it.store.capacity_bytes(), OWN + lent_bytes);
    // On a slow disk in more than one look.
    until("what guests have to be given back", || it.look() == (4, 4 * SECTION));
    assert!(it.store.memory_bytes() <= OWN + 4 * SECTION);
    it.assert_all(pages);
}

#[test]
fn what_was_lent_comes_back_when_nothing_is_to_be_lent_any_more() {
    let (store, _, _) = fuller_store();
    let room = Room { own_bytes: OWN, lent_bytes: 0 };
    let (_folder, pool) = Lent::pool();
    let loan = Loan::new(&pool, &store, room).unwrap().expect("it still has some");
    assert!(pool.lent_bytes() > 7 * SECTION);
    let before = pool.lent_bytes();
    // A guest need not wait until all of it is back.
    pool.create("a", DEVICE, 24 * SECTION).unwrap();
    assert_eq!(pool.reserve("a", 1, 18 * SECTION).unwrap(), 18 * SECTION);
    assert!(pool.lent_bytes() <= 6 * SECTION && pool.lent_bytes() < before);
    let lender = Lender::start(loan.clone(), pool.clone(), || 0).unwrap();
    until("all to be back", || {
        pool.lent_bytes() == 0 && lender.thread.as_ref().unwrap().is_finished()
    });
    assert!(store.memory_bytes() <= OWN && store.capacity_bytes() == OWN);
    assert!(Loan::new(&Lent::pool().1, &store, room).unwrap().is_none(), "nothing is lent");
}

#[test]
fn huge_pages_are_not_lent() {
    let huge = Backing::Hugetlbfs { page_bytes: 2 << 20 };
    let line = check(huge, SECTION).unwrap_err().to_string();
    assert!(line.contains("hugetlbfs") && line.contains("set \"0\""), "{line}");
    check(huge, 0).unwrap();
    check(Backing::Tmpfs, SECTION).unwrap();
}

#[test]
fn the_thread_lends_by_itself_and_ends() {
    let it = Lent::new(Some(disk(128 * MIB)));
    let lender = Lender::start(it.loan.clone(), it.pool.clone(), || 0).unwrap();
    until_equal("what is lent", (16, LENT), || it.counts());
    drop(lender);
    assert_eq!(Arc::strong_count(&it.loan), 2, "the pool's and the test's");
}
