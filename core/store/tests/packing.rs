//! A full store packs: what it holds before the first refusal, and that it reads back right.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use spillway_store::{
    ClientConfig, Config, Dedup, Get, Key, PAGE_BYTES, Packer, PoolId, PoolSpec, Put, Refusal,
    Scratch, Store,
};
use spillway_test_support::pages::compressible;
use spillway_tiers::lz4::{PACKED_BYTES, Table, pack};

const MIB: u64 = 1 << 20;

/// The bytes that are left of pages, of those that pack by a quarter.
#[derive(Default)]
struct Left {
    pages: u64,
    bytes: u64,
    table: Table,
}

impl Left {
    fn add(&mut self, page: &[u8; PAGE_BYTES]) {
        let mut packed = [0; PACKED_BYTES];
        let length = pack(page, &mut packed, &mut self.table);
        self.pages += 1;
        self.bytes += if length <= PAGE_BYTES * 3 / 4 { length } else { PAGE_BYTES } as u64;
    }

    /// Pages that a store of these bytes holds at best.
    fn at_best(&self, capacity_bytes: u64) -> u64 {
        (u128::from(capacity_bytes) * u128::from(self.pages) / u128::from(self.bytes)) as u64
    }
}

fn open(config: Config) -> (Store, PoolId) {
    let store = Store::open(config).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    (store, pool)
}

fn makes_room(capacity_bytes: u64) -> Config {
    Config { makes_room: true, ..Config::embedded(capacity_bytes) }
}

fn key(number: u32) -> Key {
    Key::new(u64::from(number >> 16), number & 0xffff)
}

fn assert_page(store: &Store, pool: PoolId, number: u32, random: usize) {
    let mut copy = [0; PAGE_BYTES];
    assert_eq!(store.get(pool, key(number), &mut copy).expect("get"), Get::Hit(PAGE_BYTES));
    assert!(copy == compressible(number, random), "page {number}");
}

/// Puts pages until one is refused; how many were stored, and how many there could be at best.
fn fill(store: &Store, pool: PoolId, bytes: u64, random: impl Fn(u32) -> usize) -> (u32, u64) {
    let mut left = Left::default();
    for number in 0.. {
        let page = compressible(number, random(number));
        match store.put(pool, key(number), &page) {
            Put::Stored => left.add(&page),
            put => {
                assert_eq!(put, Put::Refused(Refusal::NodeFull));
                return (number, left.at_best(bytes));
            }
        }
    }
    unreachable!()
}

/// A mix: its name, how many bytes of page `number` are random, and what part of what there could be at
/// best a store of 32 MiB holds. Of many lengths, each takes spans of its own.
type Mix = (&'static str, fn(u32) -> usize, f64);

const MIXES: [Mix; 6] = [
    ("two to one", |_| 2040, 0.95),
    ("five eighths two to one", |n| if mixed(n) >> 29 < 5 { 2040 } else { 4092 }, 0.95),
    ("five eighths to next to nothing", |n| if n % 8 < 5 { 8 } else { 4092 }, 0.95),
    ("three to one", |_| 1300, 0.95),
    ("of all lengths", |n| (mixed(n) >> 20) as usize % 4092, 0.85),
    ("incompressible", |_| 4092, 0.95),
];

const fn mixed(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b9)
}

#[test]
fn a_full_store_holds_what_packing_leaves_room_for() {
    // A put takes frames of its processor's lane. A test that moves between processors fills the lanes by chance.
    let mut own = rustix::thread::CpuSet::new();
    own.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &own).expect("a processor");
    for (name, random, least) in MIXES {
        let bytes = 32 * MIB;
        let (store, pool) = open(makes_room(bytes));
        let (stored, best) = fill(&store, pool, bytes, random);
        let part = f64::from(stored) / best as f64;
        assert!(part >= least, "{name}: {stored} of {best}, {part:.3}");
        assert!(store.memory_bytes() <= bytes);
        for number in 0..stored {
            assert_page(&store, pool, number, random(number));
        }
        // Freed in part it takes as much again.
        let freed: Vec<u32> = (0..stored).filter(|&number| mixed(number) >> 8 & 3 == 0).collect();
        for &number in &freed {
            assert!(store.flush(pool, key(number)));
        }
        let mut again = 0;
        for &number in &freed {
            again += usize::from(
                store.put(pool, key(number), &compressible(number, random(number))) == Put::Stored,
            );
        }
        let part = again as f64 / freed.len() as f64;
        assert!(part >= least, "{name}: {again} of {} again", freed.len());
    }
}

/// Fills a store that does not make room itself with pages that halve.
fn filled(bytes: u64) -> (Store, PoolId, u32) {
    let (store, pool) = open(Config::embedded(bytes));
    let (stored, _) = fill(&store, pool, bytes, |_| 2040);
    assert_eq!(store.compressed_pages(), 0);
    (store, pool, stored)
}

#[test]
fn a_store_full_of_raw_pages_packs_all_of_them() {
    let (store, pool, stored) = filled(16 * MIB);
    let mut scratch = Scratch::new();
    while store.demote(100, &mut scratch) != 0 {}
    assert_eq!(store.compressed_pages(), u64::from(stored));
    for number in 0..stored {
        assert_page(&store, pool, number, 2040);
    }
}

#[test]
fn equal_pages_share_frames_that_packing_has_moved() {
    let config = Config { dedup: Dedup::PerClient, ..Config::embedded(16 * MIB) };
    let (store, pool) = open(config);
    // What does not pack moves out of the chunks of what does.
    let random = |number| if number % 2 == 0 { 4092 } else { 2040 };
    let (stored, _) = fill(&store, pool, 16 * MIB, random);
    let mut scratch = Scratch::new();
    while store.demote(100, &mut scratch) != 0 {}
    let taken = || store.memory_bytes() - store.free_frame_bytes();
    let before = taken();
    for number in (0..stored).step_by(2) {
        let copy = compressible(number, random(number));
        assert_eq!(store.put(pool, key(stored + number), &copy), Put::Stored);
    }
    let more = taken() - before;
    assert!(more < MIB / 8, "{more} bytes for the copies of {} pages", stored / 2);
}

#[test]
fn what_found_no_room_packs_when_there_is_some() {
    // So small a store keeps nothing for packing.
    let (store, pool, stored) = filled(2 * MIB);
    let mut scratch = Scratch::new();
    assert_eq!(store.demote(1000, &mut scratch), 0, "there is no room for a single cell");
    for number in (0..stored).filter(|number| number % 3 == 0) {
        assert!(store.flush(pool, key(number)));
    }
    while store.demote(1000, &mut scratch) != 0 {}
    assert_eq!(store.compressed_pages(), u64::from(stored - stored.div_ceil(3)));
    for number in (0..stored).filter(|number| number % 3 != 0) {
        assert_page(&store, pool, number, 2040);
    }
}

#[test]
fn what_does_not_pack_is_looked_at_once() {
    let (store, pool) = open(Config::embedded(16 * MIB));
    let (stored, _) = fill(&store, pool, 16 * MIB, |_| 4092);
    let mut scratch = Scratch::new();
    let (mut moved, mut incompressible) = (0, 0);
    loop {
        let (more, looked_at) = store.make_room_ahead(64, &mut scratch);
        (moved, incompressible) = (moved + more, incompressible + looked_at);
        if more + looked_at == 0 {
            break;
        }
    }
    assert_eq!((moved, incompressible), (0, stored as usize));
}

#[test]
fn nothing_is_packed_while_there_is_room() {
    let (store, pool) = open(Config::embedded(16 * MIB));
    for number in 0..2000 {
        assert_eq!(store.put(pool, key(number), &compressible(number, 100)), Put::Stored);
    }
    assert!(!store.is_short());
    assert_eq!(store.make_room_ahead(64, &mut Scratch::new()), (0, 0));
    for number in 2000..3600 {
        assert_eq!(store.put(pool, key(number), &compressible(number, 100)), Put::Stored);
    }
    assert!(store.is_short());
    assert!(store.make_room_ahead(64, &mut Scratch::new()).0 >= 64);
}

#[derive(Clone, Debug)]
enum Step {
    /// Keys from a number on, so many, of pages of which so many bytes are random, or of another length.
    Put {
        pool: usize,
        first: u32,
        count: u32,
        random: usize,
    },
    /// Pages of which there are few kinds.
    Equal {
        pool: usize,
        first: u32,
        count: u32,
        random: usize,
    },
    Value {
        pool: usize,
        number: u32,
        length: usize,
    },
    Scan(usize),
    Flush {
        pool: usize,
        first: u32,
        step: u32,
    },
    Ahead,
    Demote(usize),
    Get {
        pool: usize,
        first: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pool = 0..2_usize;
    let random = prop_oneof![Just(8_usize), Just(2040), Just(2900), Just(4092)];
    let step = prop_oneof![
        4 => (pool.clone(), 0..3000_u32, 1..900_u32, random.clone())
            .prop_map(|(pool, first, count, random)| Step::Put { pool, first, count, random }),
        2 => (pool.clone(), 0..3000_u32, 1..900_u32, random)
            .prop_map(|(pool, first, count, random)| Step::Equal { pool, first, count, random }),
        1 => (1..5000_usize).prop_map(Step::Scan),
        1 => (pool.clone(), 0..3000_u32, 1..40_000_usize)
            .prop_map(|(pool, number, length)| Step::Value { pool, number, length }),
        2 => (pool.clone(), 0..3000_u32, 1..5_u32)
            .prop_map(|(pool, first, step)| Step::Flush { pool, first, step }),
        1 => Just(Step::Ahead),
        1 => (1..300_usize).prop_map(Step::Demote),
        1 => (pool, 0..3000_u32).prop_map(|(pool, first)| Step::Get { pool, first }),
    ];
    proptest::collection::vec(step, 1..40)
}

/// A store, and what is in it: of the ephemeral pool, at most.
struct Pair {
    store: Store,
    pools: [PoolId; 2],
    model: BTreeMap<(usize, u32), Vec<u8>>,
    scratch: Scratch,
    packer: Packer,
}

impl Pair {
    fn put(&mut self, pool: usize, number: u32, value: Vec<u8>) {
        match self.store.put(self.pools[pool], key(number), &value) {
            Put::Stored => self.model.insert((pool, number), value),
            Put::Refused(_) => self.model.remove(&(pool, number)),
        };
    }

    fn check(&mut self, pool: usize, number: u32) -> Result<(), TestCaseError> {
        let mut value = vec![0; 40_000];
        let got = self.store.get(self.pools[pool], key(number), &mut value).expect("get");
        // A private ephemeral pool loses by a get what it has.
        let expected = if pool == 1 {
            self.model.remove(&(pool, number))
        } else {
            self.model.get(&(pool, number)).cloned()
        };
        match (got, expected) {
            (Get::Hit(length), Some(expected)) => prop_assert!(value[..length] == expected),
            (Get::Miss, None) => {}
            (Get::Miss, Some(_)) if pool == 1 => {}
            (got, expected) => {
                prop_assert!(false, "{number}: {got:?}, {:?}", expected.map(|v| v.len()))
            }
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Put { pool, first, count, random } => {
                for number in first..first + count {
                    // No two pages are the same.
                    let other = number ^ (random as u32) << 16;
                    self.put(pool, number, compressible(other, random).to_vec());
                }
            }
            Step::Equal { pool, first, count, random } => {
                for number in first..first + count {
                    let kind = (number % 40) ^ ((random as u32) << 16);
                    self.put(pool, number, compressible(kind, random).to_vec());
                }
            }
            Step::Scan(values) => drop(self.store.scan_for_equals(values, &mut self.packer)),
            Step::Value { pool, number, length } => {
                let value = (0..length).map(|at| (at * 7 + number as usize) as u8).collect();
                self.put(pool, number, value);
            }
            Step::Flush { pool, first, step } => {
                for number in (first..4000).step_by(step as usize) {
                    self.store.flush(self.pools[pool], key(number));
                    self.model.remove(&(pool, number));
                }
            }
            Step::Ahead => drop(self.store.make_room_ahead(64, &mut self.scratch)),
            Step::Demote(pages) => drop(self.store.demote(pages, &mut self.scratch)),
            Step::Get { pool, first } => {
                for number in first..first + 100 {
                    self.check(pool, number)?;
                }
            }
        }
        prop_assert!(self.store.memory_bytes() <= self.store_bytes());
        Ok(())
    }

    const fn store_bytes(&self) -> u64 {
        6 * MIB
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A store that packs as it goes says what a map says, and loses no memory.
    #[test]
    fn a_store_that_packs_tells_what_a_map_tells(steps in steps(), dedup: bool) {
        let dedup = if dedup { Dedup::PerClient } else { Dedup::Off };
        let store = Store::open(Config { dedup, ..makes_room(6 * MIB) }).expect("open");
        let client = store.add_client(ClientConfig::default()).expect("client");
        let pools = [PoolSpec::PERSISTENT, PoolSpec::EPHEMERAL];
        let pools = pools.map(|spec| store.create_pool(client, spec).expect("pool"));
        let (scratch, packer) = (Scratch::new(), Packer::new());
        let mut pair = Pair { store, pools, model: BTreeMap::new(), scratch, packer };
        for step in steps {
            pair.step(step)?;
        }
        for pool in 0..2 {
            for number in 0..4000 {
                pair.check(pool, number)?;
                pair.store.flush(pair.pools[pool], key(number));
            }
        }
        let statistics = pair.store.statistics(client).expect("statistics");
        prop_assert_eq!((statistics.used_pages, pair.store.compressed_pages()), (0, 0));
        pair.store.trim();
        let left = pair.store.memory_bytes() - pair.store.free_frame_bytes();
        prop_assert!(left < MIB, "{left} bytes are left");
        // All of it can be had again.
        let (stored, _) = fill(&pair.store, pair.pools[0], 6 * MIB, |_| 4092);
        let bytes = u64::from(stored) * PAGE_BYTES as u64;
        prop_assert!(bytes + left + MIB >= 6 * MIB, "{stored} pages beside {left} bytes");
    }
}

/// The index grows beside the pages: when memory for one more chunk is left, it may take some of that before the
/// chunk is needed. Each of these capacities leaves another rest, up to a whole chunk.
#[test]
fn a_full_store_packs_whatever_the_index_took_before() {
    let pages: Vec<_> = (0..2400_u32).map(|number| compressible(number, 2040)).collect();
    for more in 0..65 * 4 {
        let bytes = 4 * MIB + more * PAGE_BYTES as u64;
        let (store, pool) = open(makes_room(bytes));
        let is_stored = |&(number, page): &(u32, &[u8; PAGE_BYTES])| {
            store.put(pool, key(number), page) == Put::Stored
        };
        let stored = (0..).zip(&pages).take_while(is_stored).count() as u64;
        assert!(stored > bytes / PAGE_BYTES as u64 * 3 / 2, "{bytes} bytes: {stored} pages");
    }
}

/// The task that packs ahead gets the processor last, so it often rests with a chunk that it has half emptied. A put
/// that finds nothing else waits for it.
#[test]
fn a_slow_task_that_packs_does_not_have_puts_refused() {
    let bytes = 16 * MIB;
    for _ in 0..10 {
        let (store, pool) = open(makes_room(bytes));
        let ended = AtomicBool::new(false);
        let runs = || !ended.load(Ordering::Relaxed);
        let (stored, best) = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while runs() {
                        std::hint::spin_loop();
                    }
                });
            }
            scope.spawn(|| {
                // SAFETY: all zeros are valid parameters, and only this thread's schedule changes.
                let idle = unsafe {
                    let parameters: libc::sched_param = std::mem::zeroed();
                    libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters)
                };
                assert_eq!(idle, 0);
                let mut scratch = Scratch::new();
                while runs() {
                    store.make_room_ahead(64, &mut scratch);
                }
            });
            let filled = fill(&store, pool, bytes, |_| 2040);
            ended.store(true, Ordering::Relaxed);
            filled
        });
        assert!(u64::from(stored) * 100 > best * 92, "{stored} of {best} pages");
    }
}
