//! The disk against an array of blocks: random requests, refusals by a changing target, demotion, and restarts of the
//! daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use spillway_store::{ClientConfig, Config, PageBuf, Store};
use spillway_test_support::random::Random;
use spillway_types::{ClientId, PAGE_BYTES, PoolSpec};
use spillway_vhost_user_blk::{Disk, DiskConfig, Error, Kind, UNREAD_AFTER};
use tempfile::TempDir;

/// Two groups and a part of a third.
const BLOCKS: u64 = 150;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    WritePart(u64, usize, usize, u8),
    Read(u64, usize),
    Zero(u64, usize),
    Demote(usize),
    Target(u64),
    /// The store refuses all puts, also overwrites; or no longer.
    Freeze(bool),
    /// The daemon restarts, with its store or without.
    Restart(bool),
}

fn step() -> impl Strategy<Value = Step> {
    // Within a group, as the frontend requires.
    let run = (0..BLOCKS, 1..20_usize).prop_map(|(first, count)| {
        let end = (first / 64 * 64 + 64).min(BLOCKS);
        (first, count.min((end - first) as usize))
    });
    let part = (0..PAGE_BYTES, 1..PAGE_BYTES)
        .prop_map(|(start, bytes)| (start, bytes.min(PAGE_BYTES - start)));
    prop_oneof![
        6 => (run.clone(), any::<u8>()).prop_map(|((at, count), seed)| Step::Write(at, count, seed)),
        3 => (0..BLOCKS, part, any::<u8>())
            .prop_map(|(at, (start, bytes), seed)| Step::WritePart(at, start, bytes, seed)),
        4 => run.clone().prop_map(|(at, count)| Step::Read(at, count)),
        2 => run.prop_map(|(at, count)| Step::Zero(at, count)),
        2 => (0..40_usize).prop_map(Step::Demote),
        2 => prop_oneof![Just(0), 0..BLOCKS, Just(u64::MAX)].prop_map(Step::Target),
        1 => any::<bool>().prop_map(Step::Freeze),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}

/// The content of a page, different for each block. Some pages consist of one repeated byte, except the first byte.
fn page(block: u64, seed: u8) -> PageBuf {
    let mut page = PageBuf::ZERO;
    for (at, byte) in page.0.iter_mut().enumerate() {
        *byte = if seed.is_multiple_of(5) { seed } else { seed ^ at as u8 ^ (at >> 8) as u8 };
    }
    page.0[0] = block as u8;
    page
}

struct World {
    store: Arc<Store>,
    client: ClientId,
    dir: TempDir,
    kind: Kind,
    disk: Option<Disk>,
    /// The value of each block; none if it was lost with a store.
    model: Vec<Option<PageBuf>>,
}

fn new_store() -> (Arc<Store>, ClientId) {
    let store = Arc::new(Store::open(Config::embedded(8 << 20)).unwrap());
    let client = store.add_client(ClientConfig::default()).unwrap();
    (store, client)
}

impl World {
    fn new(kind: Kind) -> Self {
        let (store, client) = new_store();
        let mut world = Self {
            store,
            client,
            dir: TempDir::new().unwrap(),
            kind,
            disk: None,
            model: vec![Some(PageBuf::ZERO); BLOCKS as usize],
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let config = DiskConfig {
            name: "test".into(),
            kind: self.kind,
            client: self.client,
            bytes: BLOCKS * PAGE_BYTES as u64,
            backing: self.dir.path().join("file"),
            latency: Duration::ZERO,
        };
        // Dropping the former disk releases its lock on the file.
        self.disk = None;
        self.disk = Some(Disk::open(self.store.clone(), config).unwrap());
    }

    fn disk(&self) -> &Disk {
        self.disk.as_ref().unwrap()
    }

    /// Whether the store holds a block.
    fn in_store(&self, block: u64) -> bool {
        let key = spillway_types::Key::new(0, block as u32);
        self.store.exists(self.disk().pool(), key)
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Write(first, count, seed) => {
                let blocks = first..first + count as u64;
                let pages: Vec<_> = blocks.clone().map(|block| page(block, seed)).collect();
                self.disk().write(first, &pages).unwrap();
                for (block, page) in blocks.zip(pages) {
                    self.model[block as usize] = Some(page);
                }
            }
            Step::WritePart(block, start, bytes, seed) => {
                let part = page(block, seed).0[start..start + bytes].to_vec();
                let done = self.disk().write_part(block, start, &part);
                match &mut self.model[block as usize] {
                    Some(known) => {
                        done.unwrap();
                        known.0[start..start + bytes].copy_from_slice(&part);
                    }
                    None => assert!(matches!(done, Err(Error::Lost(_))), "{done:?}"),
                }
            }
            Step::Read(first, count) => self.check(first, count),
            Step::Zero(first, count) => {
                self.disk().zero(first, count).unwrap();
                for block in first..first + count as u64 {
                    self.model[block as usize] = Some(PageBuf::ZERO);
                    assert!(!self.in_store(block), "block {block} was not given back");
                }
            }
            Step::Demote(count) => {
                let before = self.store.statistics(self.client).unwrap().used_pages;
                let moved = self.disk().demote(count, None).blocks;
                let after = self.store.statistics(self.client).unwrap().used_pages;
                assert!(moved <= count && before - after == moved as u64);
                self.disk().next_turn(Instant::now());
            }
            Step::Target(pages) => self.store.set_target(self.client, pages).unwrap(),
            Step::Freeze(true) => self.store.freeze(self.client).unwrap(),
            Step::Freeze(false) => self.store.thaw(self.client).unwrap(),
            Step::Restart(kept) => {
                if !kept {
                    for block in 0..BLOCKS {
                        if self.kind == Kind::Swap && self.in_store(block) {
                            self.model[block as usize] = None;
                        }
                    }
                    (self.store, self.client) = new_store();
                }
                self.open();
            }
        }
    }

    fn check(&self, first: u64, count: usize) {
        let mut pages = vec![PageBuf(std::array::from_fn(|_| 0xee)); count];
        let done = self.disk().read(first, &mut pages);
        let known = &self.model[first as usize..first as usize + count];
        if known.iter().any(Option::is_none) {
            assert!(matches!(done, Err(Error::Lost(_))), "{done:?}");
            return;
        }
        done.unwrap();
        for ((block, page), known) in (first..).zip(&pages).zip(known) {
            let known = known.as_ref().unwrap();
            assert!(page.0 == known.0, "block {block} is wrong");
        }
    }

    fn check_all(&self) {
        for block in 0..BLOCKS {
            self.check(block, 1);
        }
    }
}

fn run(kind: Kind, steps: &[Step]) {
    let mut world = World::new(kind);
    for step in steps {
        world.take(step);
    }
    world.check_all();
    world.open();
    world.check_all();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_swap_disk_is_an_array_of_blocks(steps in prop::collection::vec(step(), 1..60)) {
        run(Kind::Swap, &steps);
    }

    #[test]
    fn a_cache_disk_is_an_array_of_blocks(steps in prop::collection::vec(step(), 1..60)) {
        run(Kind::Cache, &steps);
    }
}

#[test]
fn what_the_store_refuses_lies_in_the_file() {
    let mut world = World::new(Kind::Swap);
    world.take(&Step::Write(1, 20, 7));
    assert_eq!(world.disk().statistics().store_writes, 20);
    world.take(&Step::Target(0));
    world.take(&Step::Write(30, 20, 9));
    let counted = world.disk().statistics();
    assert_eq!((counted.file_writes, counted.refused), (20, 20));
    // At the target, the store still replaces a value. For a frozen client it refuses every put.
    world.take(&Step::Freeze(true));
    world.take(&Step::Write(1, 20, 9));
    assert_eq!(world.store.statistics(world.client).unwrap().used_pages, 0, "P2: the old goes");
    world.check_all();
    assert_eq!(world.disk().statistics().file_reads, 40);
}

#[test]
fn reads_of_the_file_are_asked_of_the_store_too() {
    let mut world = World::new(Kind::Swap);
    world.take(&Step::Target(0));
    world.take(&Step::Write(1, 4, 7));
    world.check(1, 4);
    assert_eq!(world.store.statistics(world.client).unwrap().misses, 4);
}

#[test]
fn what_was_read_back_goes_first() {
    let mut world = World::new(Kind::Swap);
    world.take(&Step::Write(1, 10, 7));
    world.disk().next_turn(Instant::now());
    world.take(&Step::Write(20, 10, 7));
    world.check(25, 2);
    assert_eq!(world.disk().demote(2, None).blocks, 2);
    assert!(!world.in_store(25) && !world.in_store(26));
    assert_eq!(world.disk().demote(10, None).blocks, 10);
    assert!((1..11).all(|block| !world.in_store(block)), "the older ones go next");
    assert!((20..25).all(|block| world.in_store(block)));
    world.check_all();
}

#[test]
fn pages_that_nobody_reads_for_ten_minutes_are_counted() {
    let mut world = World::new(Kind::Swap);
    let start = Instant::now();
    world.take(&Step::Write(1, 10, 7));
    world.disk().next_turn(start);
    world.take(&Step::Write(20, 10, 7));
    let later = start + UNREAD_AFTER;
    assert_eq!(world.disk().unread_pages(later - Duration::from_secs(1)), 0);
    assert_eq!(world.disk().unread_pages(later), 10, "those that were there when the turn began");
    world.check(1, 2);
    world.take(&Step::Zero(3, 3));
    world.take(&Step::Write(6, 1, 8));
    assert_eq!(world.disk().unread_pages(later), 4, "but none that is read, discarded or new");
}

#[test]
fn the_signature_outlives_the_store() {
    let mut world = World::new(Kind::Swap);
    world.take(&Step::Write(0, 5, 7));
    world.take(&Step::Restart(false));
    assert!(world.model[0].is_some() && world.model[1].is_none());
    world.check_all();
}

#[test]
fn a_cache_disk_reads_a_second_time_from_the_store() {
    let mut world = World::new(Kind::Cache);
    world.take(&Step::Write(3, 5, 7));
    world.check(3, 5);
    world.check(3, 5);
    world.check(3, 5);
    let counted = world.disk().statistics();
    assert_eq!((counted.file_reads, counted.store_reads), (5, 10));
    let pools = world.store.pools(world.client).unwrap();
    assert_eq!(pools.len(), 1);
    world.open();
    assert_eq!(world.store.pools(world.client).unwrap().len(), 1, "the pool of before is gone");
}

/// A kill between two steps of a request leaves the old or the new value of each block. The test constructs the states
/// of store and map that a kill can leave.
#[test]
fn a_kill_between_two_steps_loses_nothing() {
    let mut world = World::new(Kind::Swap);
    world.take(&Step::Write(1, 3, 7));
    world.take(&Step::Target(0));
    world.take(&Step::Write(10, 3, 8));
    world.take(&Step::Target(u64::MAX));
    let pool = world.disk().pool();
    let put = |block: u32, seed| {
        let key = spillway_types::Key::new(0, block);
        let stored = world.store.put(pool, key, &page(u64::from(block), seed).0);
        assert_eq!(stored, spillway_types::Put::Stored);
    };
    // Killed after a put, before the map changed: the write was not acknowledged, so the old value is served.
    put(10, 99);
    // Killed after a discard changed the map, before its flush: zeros. A put to a block that is nowhere looks the same.
    put(20, 98);
    world.open();
    assert!(!world.in_store(10) && !world.in_store(20), "what the map does not name is flushed");
    world.check_all();
}

#[test]
fn pools_are_of_the_kind_that_the_disk_needs() {
    for (kind, persistent) in [(Kind::Swap, true), (Kind::Cache, false)] {
        let world = World::new(kind);
        let pools = world.store.pools(world.client).unwrap();
        let is_persistent = pools[0].spec.lifetime == PoolSpec::PERSISTENT.lifetime;
        assert_eq!(is_persistent, persistent);
    }
}

/// Threads write their own blocks in shared groups, while pages are demoted and the target changes. Each reads what it
/// wrote last.
#[test]
fn threads_do_not_disturb_each_other() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 400;
    let world = World::new(Kind::Swap);
    let (disk, store) = (world.disk(), &world.store);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut last = vec![None; BLOCKS as usize];
                let mut random = Random::new(thread);
                for round in 0..ROUNDS {
                    let block = random.below(BLOCKS / THREADS) * THREADS + thread;
                    let seed = round as u8;
                    if random.one_in(16) {
                        disk.zero(block, 1).unwrap();
                        last[block as usize] = Some(PageBuf::ZERO);
                    } else {
                        disk.write(block, &[page(block, seed)]).unwrap();
                        last[block as usize] = Some(page(block, seed));
                    }
                    let other = random.below(BLOCKS / THREADS) * THREADS + thread;
                    let mut found = [PageBuf::ZERO];
                    disk.read(other, &mut found).unwrap();
                    if let Some(known) = &last[other as usize] {
                        assert!(found[0].0 == known.0, "block {other} is wrong");
                    }
                }
            });
        }
        scope.spawn(move || {
            for round in 0..ROUNDS / 4 {
                disk.demote(8, None);
                disk.next_turn(Instant::now());
                store.set_target(disk.client(), round % 5 * 30).unwrap();
            }
        });
    });
}

#[test]
fn bad_files_are_refused_with_a_line() {
    let dir = TempDir::new().unwrap();
    let (store, client) = new_store();
    let open = |file: &str, bytes: u64, kind| {
        let config = DiskConfig {
            name: "test".into(),
            kind,
            client,
            bytes,
            backing: dir.path().join(file),
            latency: Duration::ZERO,
        };
        Disk::open(store.clone(), config).map_err(|error| error.to_string())
    };
    let refused = |opened: Result<Disk, String>, expected: &str| {
        let line = opened.unwrap_err();
        assert!(line.contains(expected) && !line.contains('\n'), "{line}");
    };
    refused(open("none", 0, Kind::Swap), "give the disk a size");
    assert!(!dir.path().join("none").exists());
    refused(open("odd", 5000, Kind::Swap), "multiple of 4096");
    refused(open("", 8192, Kind::Swap), "can't use");
    std::fs::write(dir.path().join("small"), [0; 4096]).unwrap();
    refused(open("small", 8192, Kind::Swap), "has 4096 bytes and the disk 8192");
    let disk = open("good", 8192, Kind::Swap).unwrap();
    refused(open("good", 8192, Kind::Swap), "in use by another disk");
    drop(disk);
    refused(open("good", 4096, Kind::Swap), "of another size");
    refused(open("good", 8192, Kind::Cache), "of another kind");
    assert_eq!(open("good", 0, Kind::Swap).unwrap().blocks(), 2);
    std::fs::write(dir.path().join("other"), [0; 8192]).unwrap();
    std::fs::write(dir.path().join("other.map"), "what else").unwrap();
    refused(open("other", 0, Kind::Swap), "is no map of a disk");
    assert_eq!(std::fs::read(dir.path().join("other.map")).unwrap(), b"what else");
}
