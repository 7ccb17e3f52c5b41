//! Pages on a blade: what goes there comes back or is told to be gone, in one process and in those
//! that fork from it; and nothing stays behind.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use spillway_store::{
    ClientConfig, ClientId, Config, Error, Get, Key, PAGE_BYTES, PageBuf, PoolId, PoolSpec, Put,
    Scratch, Store, Tier,
};
use spillway_test_support::pages::{TEXT, half_text, incompressible};
use spillway_test_support::wait::until;
use spillway_tiers::blade::{Blade, Carried, Carrier, KEY_BYTES, Ledger, Parcel, Seal, Wanted};

const MIB: u64 = 1 << 20;
const PAGES: u32 = 3000;

/// A blade in the same process: another store.
#[derive(Debug)]
struct Shelf {
    store: Store,
    client: ClientId,
    pool: PoolId,
    down: AtomicBool,
    /// One bit of each value that comes back is turned.
    lying: AtomicBool,
    /// It goes down when the next values are put.
    falling: AtomicBool,
    /// It refuses to remove values.
    keeping: AtomicBool,
    /// Attempts to come back to it.
    attempts: AtomicU32,
}

impl Shelf {
    fn new() -> &'static Self {
        let store = Store::open(Config::embedded(64 * MIB)).expect("open");
        let client = store.add_client(ClientConfig::default()).expect("client");
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
        let [down, lying, falling, keeping] = [(); 4].map(|()| AtomicBool::new(false));
        let attempts = AtomicU32::new(0);
        Box::leak(Box::new(Self { store, client, pool, down, lying, falling, keeping, attempts }))
    }

    fn values(&self) -> u64 {
        let mut values = 0;
        self.store.export(self.pool, |_, _| values += 1).expect("export");
        values
    }

    /// What a blade that was restarted empty looks like.
    fn empty(&self) {
        let mut keys = Vec::new();
        self.store.export(self.pool, |key, _| keys.push(key)).expect("export");
        for key in keys {
            assert!(self.store.flush(self.pool, key));
        }
    }
}

impl Carrier for Shelf {
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]) {
        if self.falling.swap(false, Relaxed) {
            self.down.store(true, Relaxed);
        }
        for (parcel, outcome) in parcels.iter().zip(outcomes) {
            *outcome = match self.down.load(Relaxed) {
                true => Carried::Lost,
                false => match self.store.put(self.pool, parcel.key, parcel.value) {
                    Put::Stored => Carried::Done,
                    Put::Refused(_) => Carried::Refused,
                },
            };
        }
    }

    fn get(&self, wanted: &mut [Wanted<'_>], _patient: bool) {
        for one in wanted {
            one.outcome = match self.down.load(Relaxed) {
                true => Carried::Lost,
                false => match self.store.get(self.pool, one.key, one.room) {
                    Ok(Get::Hit(length)) if length == one.room.len() => Carried::Done,
                    _ => Carried::Missing,
                },
            };
            if self.lying.load(Relaxed) {
                one.room[100] ^= 1;
            }
        }
    }

    fn flush(&self, keys: &[Key]) -> Carried {
        if self.keeping.load(Relaxed) {
            return Carried::Refused;
        }
        keys.iter().for_each(|&key| _ = self.store.flush(self.pool, key));
        Carried::Done
    }

    fn flush_object(&self, object: u64) -> bool {
        self.store.flush_object(self.pool, object);
        true
    }

    fn end_run(&self) -> bool {
        true
    }

    fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    fn down_ns(&self) -> u64 {
        0
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn tend(&self) {
        self.attempts.fetch_add(1, Relaxed);
    }

    fn forget_connections(&self) {}

    fn descriptors(&self) -> Vec<u64> {
        Vec::new()
    }

    fn reopen(&self, _: &mut dyn FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        Ok(())
    }
}

fn ledger() -> &'static Ledger {
    // SAFETY: zeros are an empty ledger.
    Box::leak(unsafe { Box::<Ledger>::new_zeroed().assume_init() })
}

/// A store of 2 MiB over a blade.
struct Far {
    store: Store,
    pool: PoolId,
    scratch: Scratch,
}

impl Far {
    fn new(shelf: &'static Shelf, mirror: Option<&'static Shelf>, ledger: &'static Ledger) -> Self {
        let mirror = mirror.map(|mirror| mirror as &dyn Carrier);
        Self::with(ledger, |seal, ledger| Blade::new(seal, shelf, mirror, ledger, 0))
    }

    fn with(ledger: &'static Ledger, blade: impl FnOnce(Seal, &'static Ledger) -> Blade) -> Self {
        let store = Store::open(Config::embedded(2 * MIB)).expect("open");
        let store = store.with_blade(blade(Seal::encrypted(&[3; KEY_BYTES]), ledger));
        let client = store.add_client(ClientConfig::default()).expect("client");
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
        Self { store, pool, scratch: Scratch::new() }
    }

    /// Puts pages, each as often as the store asks for; gives how many it took.
    fn fill(&mut self, pages: Range<u32>) -> u32 {
        for number in pages.clone() {
            let page = page(number);
            while let Put::Refused(_) =
                self.store.put_compressed(self.pool, key(number), &page, &mut self.scratch)
            {
                if self.store.demote(64, &mut self.scratch) == 0 {
                    return number - pages.start;
                }
            }
        }
        pages.end - pages.start
    }

    /// Which of some pages have to be read from the blade.
    fn on_blade(&self, pages: Range<u32>) -> Vec<u32> {
        let reads = || self.store.blade().unwrap().counts().reads;
        let is_there = |&number: &u32| {
            let before = reads();
            assert!(self.read(number).expect("read"));
            reads() > before
        };
        pages.filter(is_there).collect()
    }

    fn read(&self, number: u32) -> Result<bool, Error> {
        let mut scratch = PageBuf::ZERO;
        let read = self.store.read_page(self.pool, key(number), &mut scratch)?;
        Ok(read.is_some_and(|read| *read == page(number)))
    }

    fn assert_all(&self, pages: u32) {
        for number in 0..pages {
            assert!(self.read(number).expect("read"), "page {number}");
        }
    }

    fn tidy(&self) {
        while self.store.blade().unwrap().tidy(1000) > 0 {}
    }
}

fn key(number: u32) -> Key {
    Key::new(5, number)
}

/// Pages that LZ4 can't shrink, can halve, and that are filled with one word.
fn page(number: u32) -> [u8; PAGE_BYTES] {
    match number {
        _ if number % 7 == 6 => [number as u8; PAGE_BYTES],
        _ if number.is_multiple_of(2) => half_text(number),
        _ => incompressible(number),
    }
}

#[test]
fn pages_go_to_the_blade_and_come_back_one_by_one_and_in_runs() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    assert_eq!(far.fill(0..PAGES), PAGES);
    assert!(shelf.values() > u64::from(PAGES) / 2, "{} values", shelf.values());
    far.assert_all(PAGES);
    let mut pages = vec![PageBuf::ZERO; 40];
    let keys: Vec<Key> = (1000..1040).map(key).collect();
    assert_eq!(far.store.read_run(far.pool, &keys, &mut pages), (40, 40));
    for (number, read) in (1000..).zip(&pages) {
        assert!(read.0 == page(number), "page {number} of the run");
    }
    let counts = far.store.blade().unwrap().counts();
    assert_eq!(counts.lost, 0);
    assert!(counts.reads > 1000 && counts.read_bytes < counts.reads * 4112, "{counts:?}");
}

#[test]
fn a_run_ends_before_the_first_page_that_does_not_come() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    far.fill(0..PAGES);
    let mut pages = vec![PageBuf::ZERO; 40];
    let keys: Vec<Key> = (1000..1040).map(key).collect();
    for at in [37, 20, 16, 15, 3, 0] {
        far.store.flush(far.pool, keys[at]);
        assert_eq!(far.store.read_run(far.pool, &keys, &mut pages).0, at, "it was flushed");
    }
    let keys: Vec<Key> = (2000..2040).map(key).collect();
    shelf.empty();
    let (came, _) = far.store.read_run(far.pool, &keys, &mut pages);
    let first_gone = (2000..).position(|number| far.read(number).is_err());
    assert_eq!(Some(came), first_gone, "the blade has lost it");
}

#[test]
fn calls_that_go_well_are_no_stalls() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    far.fill(0..PAGES);
    far.assert_all(PAGES);
    far.store.flush(far.pool, key(1));
    far.tidy();
    let blade = far.store.blade().unwrap();
    // A machine that is busy may stall a call for a while, but for no minute.
    assert!(blade.counts().stall_max_ns < 60_000_000_000, "{:?}", blade.counts());
    assert!(blade.take_stall_ns() < 60_000_000_000);
}

#[test]
fn what_lies_on_the_blade_is_not_readable_and_same_filled_pages_are_not_there() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    far.fill(0..PAGES);
    shelf
        .store
        .export(shelf.pool, |_, value| {
            assert!(!value.windows(8).any(|part| part == TEXT));
        })
        .unwrap();
    assert!(shelf.values() <= u64::from(PAGES) * 6 / 7 + 1);
}

#[test]
fn freed_pages_leave_the_blade() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    far.fill(0..PAGES);
    let before = shelf.values();
    for number in (0..PAGES).step_by(2) {
        assert!(far.store.flush(far.pool, key(number)));
    }
    far.tidy();
    let after = shelf.values();
    assert!(after < before * 2 / 3, "{before} before, {after} after");
    for number in (1..PAGES).step_by(2) {
        assert!(far.read(number).unwrap(), "page {number}");
    }
    for number in (1..PAGES).step_by(2) {
        far.store.flush(far.pool, key(number));
    }
    far.tidy();
    assert_eq!((shelf.values(), far.store.blade().unwrap().bytes()), (0, 0));
}

#[test]
fn freed_pages_that_a_blade_refuses_to_remove_leave_it_later() {
    let (shelf, mirror) = (Shelf::new(), Shelf::new());
    let mut far = Far::new(shelf, Some(mirror), ledger());
    far.fill(0..PAGES);
    let before = (shelf.values(), mirror.values());
    shelf.keeping.store(true, Relaxed);
    for number in far.on_blade(0..PAGES).into_iter().take(300) {
        assert!(far.store.flush(far.pool, key(number)));
    }
    for _ in 0..3 {
        assert_eq!(far.store.blade().unwrap().tidy(1000), 0, "nothing was removed");
    }
    assert_eq!(shelf.values(), before.0);
    assert!(mirror.values() < before.1, "each is asked");
    shelf.keeping.store(false, Relaxed);
    far.tidy();
    assert_eq!((shelf.values(), mirror.values()), (before.0 - 300, before.1 - 300));
}

#[test]
fn a_blade_that_is_full_leaves_the_pages_with_the_store() {
    let shelf = Shelf::new();
    shelf.store.set_target(shelf.client, 500).unwrap();
    let mut far = Far::new(shelf, None, ledger());
    let filled = far.fill(0..PAGES);
    assert!(filled > 500 && filled < PAGES, "{filled} pages");
    far.assert_all(filled);
    assert!(far.store.blade().unwrap().counts().refusals > 0);
}

#[test]
fn a_copy_stays_on_the_blade_until_that_is_short_and_on_the_disk_while_it_is() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    let pays =
        |far: &Far| [Tier::Memory, Tier::Blade, Tier::Disk].map(|it| far.store.copy_pays(it));
    assert_eq!(pays(&far), [true, true, false]);
    far.fill(0..PAGES);
    assert_eq!(pays(&far), [true, true, false], "it has taken all");
    shelf.down.store(true, Relaxed);
    assert_eq!(pays(&far), [true, true, true], "it is down");
    shelf.down.store(false, Relaxed);
    shelf.store.set_target(shelf.client, 0).unwrap();
    far.fill(PAGES..2 * PAGES);
    let pays = |tier| far.store.copy_pays(tier);
    assert!(pays(Tier::Memory) && pays(Tier::Disk), "it refuses, and nothing has left");
    // Soon it is asked again, and is short nevertheless.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(far.store.blade().unwrap().takes() && pays(Tier::Disk));
    assert!(!pays(Tier::Blade) && !pays(Tier::Blade), "two leave");
    assert!(!pays(Tier::Disk) && !pays(Tier::Disk), "two get their room");
    assert!(pays(Tier::Disk), "there is no more");
    let alone = Store::open(Config::embedded(16 * MIB)).unwrap();
    assert!([Tier::Blade, Tier::Disk].into_iter().all(|tier| alone.copy_pays(tier)));
}

#[test]
fn a_page_says_where_it_was_read_from() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    far.fill(0..PAGES);
    let mut seen = [0; 3];
    for number in 0..PAGES {
        let reads = far.store.blade().unwrap().counts().reads;
        let mut scratch = PageBuf::ZERO;
        let page = far.store.read_page(far.pool, key(number), &mut scratch).unwrap().unwrap();
        let is_far = far.store.blade().unwrap().counts().reads > reads;
        assert_eq!(page.tier() == Tier::Blade, is_far, "page {number}");
        seen[page.tier() as usize] += 1;
    }
    assert!(seen[Tier::Memory as usize] > 0 && seen[Tier::Blade as usize] > 0, "{seen:?}");
}

#[test]
fn what_was_changed_or_forgotten_by_the_blade_is_an_error_and_never_served() {
    let shelf = Shelf::new();
    let mut far = Far::new(shelf, None, ledger());
    far.fill(0..PAGES);
    shelf.lying.store(true, Relaxed);
    let outcomes = |far: &Far| (0..PAGES).map(|number| far.read(number)).collect::<Vec<_>>();
    let corrupt = outcomes(&far).iter().filter(|o| matches!(o, Err(Error::Corrupt))).count();
    assert!(corrupt > 1000, "{corrupt} were seen to be damaged");
    assert!(!outcomes(&far).iter().any(|outcome| matches!(outcome, Ok(false))));
    shelf.lying.store(false, Relaxed);
    far.assert_all(PAGES);
    shelf.empty();
    let gone = outcomes(&far).iter().filter(|o| matches!(o, Err(Error::Gone))).count();
    assert_eq!(gone, corrupt);
    assert!(!outcomes(&far).iter().any(|outcome| matches!(outcome, Ok(false))));
}

#[test]
fn a_mirror_serves_when_the_blade_is_down_damaged_or_empty() {
    let (shelf, mirror) = (Shelf::new(), Shelf::new());
    let mut far = Far::new(shelf, Some(mirror), ledger());
    assert_eq!(far.fill(0..PAGES), PAGES);
    assert_eq!(shelf.values(), mirror.values());
    shelf.down.store(true, Relaxed);
    far.assert_all(PAGES);
    shelf.down.store(false, Relaxed);
    shelf.lying.store(true, Relaxed);
    far.assert_all(PAGES);
    shelf.lying.store(false, Relaxed);
    shelf.empty();
    far.assert_all(PAGES);
    assert!(far.store.blade().unwrap().counts().mirror_reads > 3000);
}

#[test]
fn what_came_from_the_mirror_is_counted_page_by_page() {
    let (shelf, mirror) = (Shelf::new(), Shelf::new());
    let mut far = Far::new(shelf, Some(mirror), ledger());
    far.fill(0..PAGES);
    let mut on_blade = Vec::new();
    shelf.store.export(shelf.pool, |key, _| on_blade.push(key)).unwrap();
    for key in on_blade.iter().skip(1).step_by(2) {
        assert!(shelf.store.flush(shelf.pool, *key));
    }
    let (keys, mut pages): (Vec<Key>, _) = ((0..PAGES).map(key).collect(), Vec::new());
    pages.resize(keys.len(), PageBuf::ZERO);
    assert_eq!(far.store.read_run(far.pool, &keys, &mut pages).0, keys.len());
    let counts = far.store.blade().unwrap().counts();
    assert_eq!(
        (counts.reads, counts.mirror_reads),
        (on_blade.len() as u64, on_blade.len() as u64 / 2)
    );
}

#[test]
fn while_one_of_the_two_is_down_pages_go_to_the_other() {
    let (shelf, mirror) = (Shelf::new(), Shelf::new());
    let mut far = Far::new(shelf, Some(mirror), ledger());
    shelf.down.store(true, Relaxed);
    assert_eq!(far.fill(0..PAGES), PAGES);
    assert_eq!(shelf.values(), 0);
    shelf.down.store(false, Relaxed);
    far.assert_all(PAGES);
    shelf.down.store(true, Relaxed);
    mirror.down.store(true, Relaxed);
    assert!(matches!(far.read(0), Err(Error::Gone)));
}

#[test]
fn a_page_that_only_a_silent_blade_or_mirror_has_is_waited_for() {
    for comes_back in 0..2 {
        let shelves = [Shelf::new(), Shelf::new()];
        let mut far = Far::with(ledger(), |seal, ledger| {
            let blade = Blade::new(seal, shelves[0], Some(shelves[1]), ledger, 0);
            blade.with_loss_timeout(Duration::from_secs(20))
        });
        assert_eq!(far.fill(0..PAGES), PAGES);
        shelves.iter().for_each(|shelf| shelf.down.store(true, Relaxed));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| far.assert_all(PAGES));
            until("a look at both", || shelves.iter().all(|it| it.attempts.load(Relaxed) > 1));
            assert!(!reading.is_finished());
            shelves[comes_back].down.store(false, Relaxed);
        });
        let counts = far.store.blade().unwrap().counts();
        assert_eq!(counts.lost, 0, "{counts:?}");
    }
}

#[test]
fn pages_that_are_read_ahead_are_not_waited_for() {
    let shelf = Shelf::new();
    let mut far = Far::with(ledger(), |seal, ledger| {
        Blade::new(seal, shelf, None, ledger, 0).with_loss_timeout(Duration::from_secs(3600))
    });
    far.fill(0..PAGES);
    let on_blade = far.on_blade(0..PAGES)[0];
    shelf.down.store(true, Relaxed);
    let (keys, mut pages) = ([key(on_blade), key(on_blade + 1)], [PageBuf::ZERO; 2]);
    assert_eq!(far.store.read_run(far.pool, &keys, &mut pages).0, 0);
    let blade = far.store.blade().unwrap();
    assert!(!blade.answers());
    assert_eq!(blade.counts().lost, 0, "nobody needed them");
}

#[test]
fn pages_on_their_way_when_one_of_the_two_goes_down_are_safe_with_the_other() {
    for first_falls in [true, false] {
        let shelves = [Shelf::new(), Shelf::new()];
        let mut far = Far::new(shelves[0], Some(shelves[1]), ledger());
        let falls = shelves[usize::from(!first_falls)];
        falls.falling.store(true, Relaxed);
        assert_eq!(far.fill(0..PAGES), PAGES);
        assert!(falls.down.load(Relaxed));
        far.assert_all(PAGES);
        let counts = far.store.blade().unwrap().counts();
        assert_eq!((counts.refusals, counts.lost), (0, 0), "{counts:?}");
    }
}

#[test]
fn after_a_fork_both_have_their_values_and_nothing_stays_when_both_are_gone() {
    let (shelf, ledger) = (Shelf::new(), ledger());
    let mut parent = Far::new(shelf, None, ledger);
    parent.fill(0..PAGES);
    parent.tidy();
    // What a fork copies, this process makes a second time: a child that holds the same objects and
    // writes to others. The child's index is stood in for by the parent's, read before it changes.
    let blade = parent.store.blade().unwrap();
    blade.share(1);
    let at_fork = shelf.values();
    // The parent replaces everything. The child still holds what it had.
    for number in 0..PAGES {
        parent.store.flush(parent.pool, key(number));
    }
    parent.tidy();
    assert_eq!(shelf.values(), at_fork, "the child still has these");
    parent.fill(0..PAGES);
    parent.assert_all(PAGES);
    // The child is killed: whoever finds it dead flushes what nobody holds.
    ledger.release(1, |name| _ = shelf.store.flush_object(shelf.pool, name));
    assert!(shelf.values() < at_fork * 5 / 4, "{} values", shelf.values());
    parent.assert_all(PAGES);
    parent.store.blade().unwrap().leave();
    assert_eq!(shelf.values(), 0);
}

#[test]
fn no_more_is_tidied_than_was_asked_for() {
    let (shelf, ledger) = (Shelf::new(), ledger());
    let mut far = Far::new(shelf, None, ledger);
    far.fill(0..PAGES / 2);
    let first = far.on_blade(0..PAGES / 2);
    // What goes to the blade from here on is of another object.
    far.store.blade().unwrap().share(1);
    ledger.release(1, |_| panic!("this process holds all of it"));
    far.fill(PAGES / 2..PAGES);
    let second = far.on_blade(PAGES / 2..PAGES);
    far.tidy();
    let before = shelf.values();
    for number in first[..6].iter().chain(&second[..100]) {
        assert!(far.store.flush(far.pool, key(*number)));
    }
    assert_eq!(far.store.blade().unwrap().tidy(10), 10);
    assert_eq!(shelf.values(), before - 10);
    far.tidy();
    assert_eq!(shelf.values(), before - 106);
}

#[test]
fn objects_that_a_child_has_left_are_tidied_again() {
    let (shelf, ledger) = (Shelf::new(), ledger());
    let mut parent = Far::new(shelf, None, ledger);
    parent.fill(0..PAGES);
    parent.store.blade().unwrap().share(1);
    let at_fork = shelf.values();
    for number in (0..PAGES).step_by(2) {
        parent.store.flush(parent.pool, key(number));
    }
    parent.tidy();
    assert_eq!(shelf.values(), at_fork);
    ledger.release(1, |_| panic!("the parent holds all of it"));
    parent.store.flush(parent.pool, key(1));
    parent.tidy();
    assert!(shelf.values() < at_fork * 2 / 3);
    for number in (3..PAGES).step_by(2) {
        assert!(parent.read(number).unwrap(), "page {number}");
    }
    // A second child has them too, though nobody has written to these objects since the first.
    parent.store.blade().unwrap().share(2);
    let at_fork = shelf.values();
    for number in (3..PAGES / 2).step_by(2) {
        parent.store.flush(parent.pool, key(number));
    }
    parent.tidy();
    assert_eq!(shelf.values(), at_fork);
}
