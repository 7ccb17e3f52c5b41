//! The rules P1 to P16 that a page store obeys, each by name.
//!
//! P1, P2, P3, P5, P7, P9, P13 and P14 hold after any sequence of operations, so a random one is
//! compared with a reference model step by step, over all tiers; so are two stores of which one is
//! copied to the other (P10). The others, and bugs that other implementations shipped, have tests of
//! their own in `rule_cases.rs`. P15 (linearizable) is in `concurrency.rs`.

mod calls;
mod model;

use std::os::fd::BorrowedFd;

use calls::{MIB, client, embedded, get, noise, pool};
use model::{Model, pages};
use proptest::prelude::*;
use spillway_store::{
    Backing, ClientId, Config, Dedup, DiskConfig, Error, Flushed, Get, Kept, Key, PAGE_BYTES,
    PageBuf, PoolId, PoolSpec, Put, Refusal, Scratch, Store, VALUE_BYTES_MAX,
};

#[derive(Clone, Debug)]
enum Value {
    /// A page of one of a few contents, so that pages equal each other.
    Noise(u64),
    /// A page that LZ4 shrinks.
    Text(u8),
    /// A page of one 32-bit word.
    Uniform(u32),
    /// Any length.
    Bytes(usize, u8),
}

impl Value {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Noise(seed) => noise(*seed),
            Self::Text(byte) => (0..PAGE_BYTES).map(|at| byte ^ (at / 100) as u8).collect(),
            Self::Uniform(word) => word.to_ne_bytes().repeat(PAGE_BYTES / 4),
            Self::Bytes(length, byte) => {
                (0..*length).map(|at| byte.wrapping_add(((at * at) >> 3) as u8)).collect()
            }
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (0..6_u64).prop_map(Value::Noise),
        2 => any::<u8>().prop_map(Value::Text),
        1 => prop_oneof![Just(0), Just(0x0707_0707), any::<u32>()].prop_map(Value::Uniform),
        2 => (1..5000_usize, any::<u8>()).prop_map(|(length, byte)| Value::Bytes(length, byte)),
        1 => (1..50_000_usize, any::<u8>()).prop_map(|(length, byte)| Value::Bytes(length, byte)),
    ]
}

/// Few keys, so that they meet; near, far apart, and in small and large objects.
fn any_key() -> impl Strategy<Value = Key> {
    let index = prop_oneof![0..4_u32, 60..68_u32, Just(5000), Just(u32::MAX)];
    (0..3_u64, index).prop_map(|(object, index)| Key::new(object, index))
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, Key, Value),
    PutCompressed(usize, Key, Value),
    Get(usize, Key),
    ReadPage(usize, Key),
    Exists(usize, Key),
    Flush(usize, Key),
    FlushObject(usize, u64),
    Recreate(usize),
    SetTarget(u64),
    Freeze(bool),
    Demote(usize),
    SealFiles,
    Reopen,
}

fn any_step() -> impl Strategy<Value = Step> {
    let pool = 0..2_usize;
    prop_oneof![
        12 => (pool.clone(), any_key(), any_value()).prop_map(|(p, k, v)| Step::Put(p, k, v)),
        3 => (pool.clone(), any_key(), any_value())
            .prop_map(|(p, k, v)| Step::PutCompressed(p, k, v)),
        6 => (pool.clone(), any_key()).prop_map(|(p, k)| Step::Get(p, k)),
        3 => (pool.clone(), any_key()).prop_map(|(p, k)| Step::ReadPage(p, k)),
        2 => (pool.clone(), any_key()).prop_map(|(p, k)| Step::Exists(p, k)),
        4 => (pool.clone(), any_key()).prop_map(|(p, k)| Step::Flush(p, k)),
        1 => (pool.clone(), 0..3_u64).prop_map(|(p, o)| Step::FlushObject(p, o)),
        1 => pool.prop_map(Step::Recreate),
        1 => prop_oneof![0..30_u64, Just(u64::MAX)].prop_map(Step::SetTarget),
        1 => any::<bool>().prop_map(Step::Freeze),
        4 => (1..40_usize).prop_map(Step::Demote),
        1 => Just(Step::SealFiles),
        1 => Just(Step::Reopen),
    ]
}

/// Steps after many pages, so that most of them lie on disk.
fn beyond_memory() -> impl Strategy<Value = Vec<Step>> {
    let page = (0..2_usize, 0..3_u64, 0..200_u32, 10..1000_u64);
    let page = page.prop_map(|(p, o, i, seed)| Step::Put(p, Key::new(o, i), Value::Noise(seed)));
    let fill = prop::collection::vec(page, 300..600);
    (fill, prop::collection::vec(any_step(), 1..200)).prop_map(|(fill, rest)| [fill, rest].concat())
}

/// In memfds, with a disk beside the test's own program, which is no tmpfs.
fn kept_on_disk() -> Config {
    let dir = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    let disk = Some(DiskConfig::new(dir, 16 * MIB));
    Config { backing: Backing::Memfd, disk, ..Config::embedded(MIB) }
}

/// A store and its model, and the pools that steps name by number.
struct Pair {
    config: Config,
    store: Store,
    client: ClientId,
    pools: [PoolId; 2],
    model: Model,
    scratch: Scratch,
}

impl Pair {
    fn new(config: Config) -> Self {
        let store = Store::open(config.clone()).expect("open");
        let client = client(&store);
        let pools = [(); 2].map(|()| pool(&store, client, PoolSpec::PERSISTENT));
        Self { config, store, client, pools, model: Model::new(u64::MAX), scratch: Scratch::new() }
    }

    fn put(&mut self, at: usize, key: Key, value: Vec<u8>, compressed: bool) {
        let expected = self.model.takes((at, key), &value);
        let put = if compressed {
            self.store.put_compressed(self.pools[at], key, &value, &mut self.scratch)
        } else if value.len() == PAGE_BYTES && key.index % 2 == 1 {
            let fill = |page: &mut [u8; PAGE_BYTES]| page.copy_from_slice(&value);
            let mut buffer = PageBuf::ZERO;
            self.store.put_page(self.pools[at], key, &mut buffer, fill)
        } else {
            self.store.put(self.pools[at], key, &value)
        };
        match put {
            Put::Stored => {
                assert!(expected, "stored beyond the target or while frozen");
                self.model.put((at, key), value);
            }
            Put::Refused(Refusal::NodeFull) => {
                assert!(expected, "the other refusals come first");
                self.model.remove((at, key));
            }
            Put::Refused(reason) => {
                let frozen = self.model.frozen && reason == Refusal::Frozen;
                assert!(frozen || reason == Refusal::AtTarget, "{reason:?}");
                assert!(!expected, "{reason:?} below the target");
                self.model.remove((at, key));
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Put(at, key, value) => self.put(at, key, value.bytes(), false),
            Step::PutCompressed(at, key, value) => self.put(at, key, value.bytes(), true),
            Step::Get(at, key) => {
                let got = get(&self.store, self.pools[at], key);
                assert_eq!(got.as_ref(), self.model.value((at, key)), "P1, P2, P3, P5");
            }
            Step::ReadPage(at, key) => {
                let mut scratch = PageBuf::ZERO;
                let expected = self.model.value((at, key));
                match self.store.read_page(self.pools[at], key, &mut scratch) {
                    Ok(page) => assert_eq!(
                        page.map(|page| page.to_vec()).as_ref(),
                        expected,
                        "a page by reference"
                    ),
                    Err(Error::NotAPage(length)) => {
                        assert_eq!(Some(length), expected.map(Vec::len));
                        assert_ne!(length, PAGE_BYTES);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Exists(at, key) => {
                let expected = self.model.value((at, key)).is_some();
                assert_eq!(self.store.exists(self.pools[at], key), expected);
            }
            Step::Flush(at, key) => {
                let expected = self.model.remove((at, key)).is_some();
                assert_eq!(self.store.flush(self.pools[at], key), expected);
                assert!(!self.store.flush(self.pools[at], key), "P7: a flush is idempotent");
            }
            Step::FlushObject(at, object) => {
                let expected = self.model.remove_object(at, object);
                assert_eq!(self.store.flush_object(self.pools[at], object), expected, "P7");
            }
            Step::Recreate(at) => {
                let old = self.pools[at];
                self.store.destroy_pool(old).expect("destroy");
                self.model.remove_pool(at);
                self.pools[at] = pool(&self.store, self.client, PoolSpec::PERSISTENT);
                assert_ne!(self.pools[at], old, "P7: ids are not reused");
                let stale = self.store.put(old, Key::new(0, 0), &[1]);
                assert_eq!(stale, Put::Refused(Refusal::NoPool));
            }
            Step::SetTarget(pages) => {
                self.store.set_target(self.client, pages).expect("target");
                self.model.target_pages = pages;
            }
            Step::Freeze(frozen) => {
                let done = if frozen {
                    self.store.freeze(self.client)
                } else {
                    self.store.thaw(self.client)
                };
                done.expect("freeze");
                self.model.frozen = frozen;
            }
            Step::Demote(pages) => {
                self.store.demote(pages, &mut self.scratch);
            }
            Step::SealFiles => self.store.seal_files(),
            Step::Reopen => self.reopen(),
        }
        let used = self.store.statistics(self.client).expect("statistics").used_pages;
        assert_eq!(used, self.model.used_pages(), "P13");
    }

    /// What a kill and a new process do to a store that is kept: nothing, but that its clients are thawed.
    fn reopen(&mut self) {
        let copy = |file: BorrowedFd<'_>| file.try_clone_to_owned().expect("duplicate");
        let Some(memory) = self.store.kept_descriptors() else { return };
        let memory = memory.map(|(_, file)| copy(file));
        let disk = self.store.kept_disk_descriptors();
        let disk = disk.map(|disk| disk.map(|(_, file)| copy(file)));
        let other = embedded(MIB);
        drop(std::mem::replace(&mut self.store, other));
        self.store = Store::reopen(self.config.clone(), Kept { memory, disk }).expect("reopen");
        self.model.frozen = false;
    }

    fn finish(mut self) {
        for ((at, key), value) in self.model.iter() {
            let got = get(&self.store, self.pools[*at], *key);
            assert!(got.as_ref() == Some(value), "{key:?} at the end");
        }
        self.step(Step::Recreate(0));
        self.step(Step::Recreate(1));
        let statistics = self.store.statistics(self.client).expect("statistics");
        assert_eq!(statistics.used_pages, 0, "P13: nothing is left");
        assert_eq!(self.store.same_filled_pages(), 0);
        assert_eq!(self.store.compressed_pages(), 0);
        assert_eq!(self.store.disk_bytes(), 0);
    }
}

/// Changes a byte in some pages of a store's file.
fn corrupt(store: &Store, bad: &[prop::sample::Index]) {
    let [(_, file), _] = store.kept_disk_descriptors().expect("disk");
    let pages = rustix::fs::fstat(file).expect("length").st_size as usize / PAGE_BYTES;
    for at in bad.iter().filter(|_| pages != 0).map(|bad| bad.index(pages)) {
        let (mut page, place) = (PageBuf::ZERO, (at * PAGE_BYTES) as u64);
        assert_eq!(rustix::io::pread(file, &mut page.0, place).expect("read"), PAGE_BYTES);
        page.0[at * 7 % PAGE_BYTES] ^= 1 << (at % 8);
        assert_eq!(rustix::io::pwrite(file, &page.0, place).expect("write"), PAGE_BYTES);
    }
}

fn run(config: Config, steps: Vec<Step>) {
    let mut pair = Pair::new(config);
    for step in steps {
        pair.step(step);
    }
    pair.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p01_p02_p03_p05_p07_p09_p13_in_memory(steps in prop::collection::vec(any_step(), 1..200)) {
        run(Config::embedded(64 * MIB), steps);
    }

    #[test]
    fn p05_p14_over_all_tiers_in_little_memory(steps in prop::collection::vec(any_step(), 1..300)) {
        let disk = DiskConfig::new(std::env::temp_dir(), 16 * MIB);
        run(Config { disk: Some(disk), ..Config::embedded(MIB) }, steps);
    }

    #[test]
    fn p05_over_a_disk_that_outlives_the_process(steps in beyond_memory()) {
        run(kept_on_disk(), steps);
    }

    #[test]
    fn p05_corrupt_pages_on_disk_are_errors_and_nothing_else_is(
        steps in beyond_memory(),
        bad in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
        reopens in any::<bool>(),
    ) {
        let mut pair = Pair::new(kept_on_disk());
        steps.into_iter().for_each(|step| pair.step(step));
        corrupt(&pair.store, &bad);
        if reopens {
            pair.reopen();
        }
        let mut errors = 0;
        for ((at, key), value) in pair.model.iter() {
            let mut buffer = vec![0; value.len()];
            match pair.store.get(pair.pools[*at], *key, &mut buffer) {
                Ok(Get::Hit(length)) => prop_assert!(length == value.len() && buffer == *value),
                Err(Error::Corrupt) => errors += 1,
                other => panic!("{other:?} of {key:?}"),
            }
        }
        prop_assert!(errors <= bad.len(), "{errors}");
        prop_assert_eq!(pair.store.disk_counters().expect("disk").corrupt_pages, errors as u64);
    }

    #[test]
    fn p14_dedup_is_invisible(steps in prop::collection::vec(any_step(), 1..200)) {
        run(Config { dedup: Dedup::PerClient, ..Config::embedded(8 * MIB) }, steps);
    }

    #[test]
    fn p04_p06_ephemeral_values_are_right_or_gone(
        puts in prop::collection::vec((any_key(), any_value(), any::<bool>()), 1..200),
    ) {
        let store = embedded(MIB);
        let client = client(&store);
        let pool = pool(&store, client, PoolSpec::EPHEMERAL);
        let mut model = Model::new(u64::MAX);
        for (key, value, reads) in puts {
            let value = value.bytes();
            match store.put(pool, key, &value) {
                Put::Stored => model.put((0, key), value),
                Put::Refused(_) => drop(model.remove((0, key))),
            }
            if reads && let Some(got) = get(&store, pool, key) {
                prop_assert_eq!(Some(&got), model.value((0, key)));
                prop_assert_eq!(get(&store, pool, key), None, "P4: a get consumes");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p10_export_and_the_flush_log_give_an_equal_target(
        puts in prop::collection::vec((any_key(), any_value()), 1..80),
        demoted in 0..40_usize,
        during in prop::collection::vec((any_key(), 0..4_u8), 0..20),
        every in 1..10_u64,
    ) {
        let source = embedded(64 * MIB);
        let from_client = client(&source);
        let from = pool(&source, from_client, PoolSpec::PERSISTENT);
        for (key, value) in &puts {
            prop_assert_eq!(source.put(from, *key, &value.bytes()), Put::Stored);
        }
        source.demote(demoted, &mut Scratch::new());

        let target = embedded(64 * MIB);
        let to_client = client(&target);
        let to = pool(&target, to_client, PoolSpec::PERSISTENT);
        source.freeze(from_client).expect("freeze");
        let mut during = during.into_iter();
        let (mut shown, mut scratch) = (0, PageBuf::ZERO);
        source.export(from, |key, value| {
            assert_eq!(target.put(to, key, value), Put::Stored);
            shown += 1;
            // Removals of all kinds go on while the values are on their way.
            if shown % every == 0 && let Some((key, kind)) = during.next() {
                match kind {
                    0 => drop(source.flush(from, key)),
                    1 => drop(source.flush_object(from, key.object)),
                    2 => drop(source.take(from, key, VALUE_BYTES_MAX, &mut scratch, |_, _| ())),
                    _ => assert_eq!(source.put(from, key, b"no"), Put::Refused(Refusal::Frozen)),
                }
            }
        }).expect("export");
        for flushed in source.take_flush_log(from_client).expect("log") {
            match flushed {
                Flushed::Page(_, key) => drop(target.flush(to, key)),
                Flushed::Object(_, object) => drop(target.flush_object(to, object)),
                Flushed::Pool(_) => target.destroy_pool(to).expect("destroy"),
            }
        }
        for (key, _) in &puts {
            prop_assert_eq!(get(&target, to, *key), get(&source, from, *key));
        }
        let used = |store: &Store, client| store.statistics(client).expect("statistics").used_pages;
        prop_assert_eq!(used(&target, to_client), used(&source, from_client));
    }
}

#[test]
fn p14_same_filled_pages_take_no_frame() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    for index in 0..5000 {
        let page = Value::Uniform(index / 7).bytes();
        assert_eq!(store.put(pool, Key::new(1, index), &page), Put::Stored);
    }
    assert_eq!(store.same_filled_pages(), 5000);
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 5000, "but they count");
    for index in 0..5000 {
        assert_eq!(get(&store, pool, Key::new(1, index)), Some(Value::Uniform(index / 7).bytes()));
    }
}

#[test]
fn values_of_all_lengths_come_back() {
    let store = embedded(64 * MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let lengths = [1, 111, 112, 113, 3056, 3057, 4095, 4096, 4097, 8192, 12_345, 3_117_056];
    let lengths = lengths.into_iter().chain([761 * 4096, 762 * 4096 + 1, VALUE_BYTES_MAX]);
    for (index, length) in lengths.enumerate() {
        let value = Value::Bytes(length, index as u8).bytes();
        let key = Key::new(1, index as u32);
        assert_eq!(store.put(pool, key, &value), Put::Stored, "{length} bytes");
        let mut copy = vec![0; length];
        assert_eq!(store.get(pool, key, &mut copy).expect("get"), Get::Hit(length));
        assert!(copy == value, "{length} bytes");
        let used = store.statistics(client).expect("statistics").used_pages;
        assert_eq!(used, pages(&value));
        assert!(store.flush(pool, key));
    }
    store.trim();
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
}
