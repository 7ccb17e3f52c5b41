//! The rules P1 to P16 that a page store obeys, each by name.
//!
//! P1, P2, P3, P5, P7, P9, P13 and P14 hold after any sequence of operations, so a random one is
//! compared with a reference model step by step, over all tiers. The others, and bugs that other
//! implementations shipped, have tests of their own. P15 (linearizable) is in `concurrency.rs`.

mod model;

use std::os::fd::BorrowedFd;

use model::{Model, pages};
use proptest::prelude::*;
use spillway_store::{
    Backing, ClientConfig, ClientId, Config, Dedup, DiskConfig, Error, Flushed, Get, Kept, Key,
    Lifetime, PAGE_BYTES, PageBuf, PoolId, PoolSpec, PoolSpecError, Put, Refusal, Scratch, Sharing,
    Store, VALUE_BYTES_MAX,
};

const MIB: u64 = 1 << 20;
const UUID: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;

fn embedded(bytes: u64) -> Store {
    Store::open(Config::embedded(bytes)).expect("open")
}

fn client(store: &Store) -> ClientId {
    store.add_client(ClientConfig::default()).expect("client")
}

fn pool(store: &Store, client: ClientId, spec: PoolSpec) -> PoolId {
    store.create_pool(client, spec).expect("pool")
}

fn get(store: &Store, pool: PoolId, key: Key) -> Option<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    match store.get(pool, key, &mut value).expect("get") {
        Get::Hit(length) => {
            value.truncate(length);
            Some(value)
        }
        Get::Miss => None,
        Get::Short(length) => panic!("a value of {length} bytes"),
    }
}

/// A page that nothing shrinks.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed << 1 | 1;
    let word = |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ state >> 29).to_ne_bytes()
    };
    (0..PAGE_BYTES / 8).flat_map(word).collect()
}

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

#[test]
fn p02_every_failed_overwrite_drops_the_old_value() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let key = Key::new(1, 1);
    let store_one = || assert_eq!(store.put(pool, key, b"old"), Put::Stored);
    let gone = || {
        assert_eq!(get(&store, pool, key), None, "a stale value");
        assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
    };

    store_one();
    let long = vec![1; VALUE_BYTES_MAX + 1];
    assert_eq!(store.put(pool, key, &long), Put::Refused(Refusal::Length));
    gone();
    store_one();
    assert_eq!(store.put(pool, key, &[]), Put::Refused(Refusal::Length));
    gone();
    store_one();
    store.set_target(client, 2).expect("target");
    assert_eq!(store.put(pool, key, &noise(1).repeat(3)), Put::Refused(Refusal::AtTarget));
    gone();
    store.set_target(client, u64::MAX).expect("target");
    store_one();
    assert_eq!(store.put(pool, key, &noise(1).repeat(500)), Put::Refused(Refusal::NodeFull));
    gone();
    store_one();
    store.freeze(client).expect("freeze");
    assert_eq!(store.put(pool, key, b"new"), Put::Refused(Refusal::Frozen));
    gone();

    let statistics = store.statistics(client).expect("statistics");
    assert_eq!(statistics.puts, 10);
    assert_eq!(statistics.puts_stored, 5);
    assert_eq!(statistics.puts_refused_at_target, 1);
    assert_eq!(statistics.puts_refused_node_full, 1);
    assert_eq!(statistics.puts_refused_other, 3);
    assert_eq!(statistics.flushed_pages, 5);
}

#[test]
fn p04_a_get_that_cannot_copy_out_does_not_consume() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::EPHEMERAL);
    let key = Key::new(1, 1);
    for value in [vec![7; 100], noise(1), noise(2).repeat(3), vec![0; PAGE_BYTES]] {
        assert_eq!(store.put(pool, key, &value), Put::Stored);
        let mut short = vec![0; value.len() - 1];
        let answer = store.get(pool, key, &mut short).expect("get");
        assert_eq!(answer, Get::Short(value.len()));
        assert_eq!(get(&store, pool, key), Some(value));
        assert_eq!(get(&store, pool, key), None);
    }
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
}

#[test]
fn p04_a_shared_ephemeral_get_keeps_the_value_and_makes_it_most_recent() {
    let store = embedded(MIB);
    let client = client(&store);
    store.authorise(client, UUID).expect("authorise");
    let pool = pool(&store, client, PoolSpec::shared_ephemeral(UUID));
    let keys: Vec<Key> = (0..600).map(|index| Key::new(1, index)).collect();
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(store.put(pool, *key, &noise(number as u64)), Put::Stored);
        // The first page is read again and again, so it is never the coldest.
        assert_eq!(get(&store, pool, keys[0]), Some(noise(0)), "after {number} puts");
    }
    assert!(store.statistics(client).expect("statistics").evicted_pages > 300);
    assert!(!store.exists(pool, keys[1]), "the coldest went first");
}

#[test]
fn p08_eviction_takes_ephemeral_pages_only() {
    let store = embedded(2 * MIB);
    let client = client(&store);
    let kept = pool(&store, client, PoolSpec::PERSISTENT);
    let dropped = pool(&store, client, PoolSpec::EPHEMERAL);
    for index in 0..150 {
        assert_eq!(store.put(kept, Key::new(1, index), &noise(u64::from(index))), Put::Stored);
    }
    for index in 0..2000 {
        let put = store.put(dropped, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored, "there is always something to drop");
    }
    for index in 0..150 {
        assert_eq!(get(&store, kept, Key::new(1, index)), Some(noise(u64::from(index))));
    }
    // Persistent pages push the ephemeral ones out to the last, and then are refused.
    let mut index = 150;
    while store.put(kept, Key::new(1, index), &noise(u64::from(index))) == Put::Stored {
        index += 1;
    }
    assert_eq!(store.statistics(client).expect("statistics").used_pages, u64::from(index));
}

#[test]
fn p08_a_client_over_its_share_pays_first_and_else_the_coldest_goes() {
    let store = embedded(4 * MIB);
    let (greedy, modest) = (client(&store), client(&store));
    let greedy_pool = pool(&store, greedy, PoolSpec::EPHEMERAL);
    let modest_pool = pool(&store, modest, PoolSpec::EPHEMERAL);
    let evicted = |client| store.statistics(client).expect("statistics").evicted_pages;
    for index in 0..100 {
        let put = store.put(modest_pool, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored);
    }
    for index in 0..3000 {
        let put = store.put(greedy_pool, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored);
    }
    assert!(evicted(greedy) > 2000);
    assert_eq!(evicted(modest), 0, "colder, but its owner is within its share");
    // The modest client grows within its share: the coldest of all go, its own old ones first.
    for index in 100..200 {
        let put = store.put(modest_pool, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored);
    }
    assert!(evicted(modest) > 0);
    assert!(!store.exists(modest_pool, Key::new(1, 0)));
    assert!(store.exists(modest_pool, Key::new(1, 199)));
}

#[test]
fn p09_a_frozen_client_reads_and_flushes() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let keys = [1, 2].map(|index| Key::new(1, index));
    for key in keys {
        assert_eq!(store.put(pool, key, b"value"), Put::Stored);
    }
    store.freeze(client).expect("freeze");
    assert_eq!(get(&store, pool, keys[0]), Some(b"value".to_vec()));
    assert!(store.flush(pool, keys[0]));
    assert_eq!(store.put(pool, keys[0], b"new"), Put::Refused(Refusal::Frozen));
    store.thaw(client).expect("thaw");
    assert_eq!(store.put(pool, keys[0], b"new"), Put::Stored);
    assert_eq!(get(&store, pool, keys[1]), Some(b"value".to_vec()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p10_export_and_the_flush_log_give_an_equal_target(
        puts in prop::collection::vec((any_key(), any_value()), 1..80),
        demoted in 0..40_usize,
        during in prop::collection::vec((any_key(), 0..3_u8), 0..20),
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
        let mut shown = 0;
        source.export(from, |key, value| {
            assert_eq!(target.put(to, key, value), Put::Stored);
            shown += 1;
            // Removals of all kinds go on while the values are on their way.
            if shown % every == 0 && let Some((key, kind)) = during.next() {
                match kind {
                    0 => drop(source.flush(from, key)),
                    1 => drop(source.flush_object(from, key.object)),
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
fn p10_destroying_a_pool_during_migration_is_logged_and_leaks_nothing() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    assert_eq!(store.put(pool, Key::new(1, 1), &noise(1)), Put::Stored);
    store.freeze(client).expect("freeze");
    store.destroy_pool(pool).expect("destroy");
    assert_eq!(store.take_flush_log(client).expect("log"), [Flushed::Pool(pool)]);
    assert!(matches!(store.export(pool, |_, _| ()), Err(Error::NoPool)));
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
}

#[test]
fn p11_joining_needs_authorisation_and_the_last_leaver_frees() {
    let store = embedded(MIB);
    let (first, second, stranger) = (client(&store), client(&store), client(&store));
    let spec = PoolSpec::shared_persistent(UUID);
    assert!(matches!(store.create_pool(stranger, spec), Err(Error::Unauthorised(UUID))));
    for member in [first, second] {
        store.authorise(member, UUID).expect("authorise");
    }
    assert!(matches!(store.join_pool(second, UUID), Err(Error::NoSharedPool(UUID))));
    let ours = pool(&store, first, spec);
    let theirs = store.join_pool(second, UUID).expect("join");
    assert_eq!(store.join_pool(second, UUID).expect("again"), theirs, "joining twice");
    assert_eq!(pool(&store, first, spec), ours, "creating twice");
    assert!(matches!(store.join_pool(stranger, UUID), Err(Error::Unauthorised(UUID))));
    let other = PoolSpec { lifetime: Lifetime::Ephemeral, sharing: Sharing::Shared { uuid: UUID } };
    assert!(matches!(store.create_pool(first, other), Err(Error::Lifetime(UUID))));

    assert_eq!(store.put(ours, Key::new(1, 1), &noise(1)), Put::Stored);
    assert_eq!(store.put(theirs, Key::new(1, 2), &noise(2)), Put::Stored);
    assert_eq!(get(&store, theirs, Key::new(1, 1)), Some(noise(1)), "one pool for both");
    let used = |client| store.statistics(client).expect("statistics").used_pages;
    assert_eq!((used(first), used(second)), (1, 1), "each pays for what it stored");
    // A rewrite by the other member moves the bill.
    assert_eq!(store.put(theirs, Key::new(1, 1), &noise(3)), Put::Stored);
    assert_eq!((used(first), used(second)), (0, 2));

    assert!(matches!(store.destroy_pool(ours), Err(Error::WrongSharing)));
    store.leave_pool(theirs).expect("leave");
    assert!(matches!(store.get(theirs, Key::new(1, 2), &mut [0; 4096]), Err(Error::NoPool)));
    assert_eq!(get(&store, ours, Key::new(1, 2)), Some(noise(2)), "P5: leaving frees nothing");
    assert_eq!((used(first), used(second)), (2, 0));
    store.leave_pool(ours).expect("leave");
    assert_eq!(used(first), 0);
    let fresh = pool(&store, first, spec);
    assert_eq!(get(&store, fresh, Key::new(1, 2)), None, "the last leaver freed it");
}

#[test]
fn p12_unknown_versions_flags_and_page_sizes_are_rejected() {
    let version = 1 << 24;
    assert_eq!(PoolSpec::from_flags(version, 0), Ok(PoolSpec::EPHEMERAL));
    assert_eq!(PoolSpec::from_flags(version | 1, 0), Ok(PoolSpec::PERSISTENT));
    let shared = PoolSpec::shared_persistent(UUID);
    assert_eq!(PoolSpec::from_flags(version | 3, UUID), Ok(shared));
    assert_eq!(PoolSpec::from_flags(0, 0), Err(PoolSpecError::Version(0)));
    assert_eq!(PoolSpec::from_flags(2 << 24, 0), Err(PoolSpecError::Version(2)));
    assert_eq!(PoolSpec::from_flags(version | 4, 0), Err(PoolSpecError::Flags(4)));
    assert_eq!(PoolSpec::from_flags(version | 1 << 9, 0), Err(PoolSpecError::Flags(1 << 9)));
    assert_eq!(PoolSpec::from_flags(version | 9 << 4, 0), Err(PoolSpecError::PageSize(21)));
}

#[test]
fn p13_flushing_what_is_absent_changes_nothing() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let before = store.statistics(client).expect("statistics");
    assert!(!store.flush(pool, Key::new(1, 1)));
    assert_eq!(store.flush_object(pool, 9), 0);
    assert_eq!(store.statistics(client).expect("statistics"), before);
}

#[test]
fn p13_the_target_is_exact() {
    let store = embedded(8 * MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    store.set_target(client, 10).expect("target");
    for index in 0..20 {
        let expected = if index < 10 { Put::Stored } else { Put::Refused(Refusal::AtTarget) };
        assert_eq!(store.put(pool, Key::new(1, index), &noise(u64::from(index))), expected);
    }
    // At the target a rewrite goes through; below it after a cut, too: it takes nothing.
    store.set_target(client, 5).expect("target");
    assert_eq!(store.put(pool, Key::new(1, 3), &noise(77)), Put::Stored);
    assert_eq!(get(&store, pool, Key::new(1, 3)), Some(noise(77)));
    let statistics = store.statistics(client).expect("statistics");
    assert_eq!((statistics.used_pages, statistics.debt_pages()), (10, 5));
}

#[test]
fn p14_equal_pages_share_a_frame_within_a_domain_only() {
    let config = Config { dedup: Dedup::PerClient, ..Config::embedded(16 * MIB) };
    let store = Store::open(config).expect("open");
    let member = |domain| {
        let config = ClientConfig { domain, ..ClientConfig::default() };
        let client = store.add_client(config).expect("client");
        pool(&store, client, PoolSpec::PERSISTENT)
    };
    let alone = member(None);
    let (left, right) = (member(Some(1)), member(Some(1)));
    let fill = |pool: PoolId| {
        let before = store.memory_bytes();
        for index in 0..1000 {
            let page = noise(u64::from(index % 500));
            assert_eq!(store.put(pool, Key::new(1, index), &page), Put::Stored);
        }
        (store.memory_bytes() - before) / PAGE_BYTES as u64
    };
    assert!((500..800).contains(&fill(alone)), "half of its pages are equal");
    assert!((450..800).contains(&fill(left)), "nothing is shared across domains");
    assert!(fill(right) < 100, "all is shared within one");
    for pool in [left, alone, right] {
        for index in 0..1000 {
            let page = noise(u64::from(index % 500));
            assert_eq!(get(&store, pool, Key::new(1, index)), Some(page));
            assert!(store.flush(pool, Key::new(1, index)), "the others keep theirs");
        }
    }
    store.trim();
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
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

#[test]
fn a_removed_client_leaves_nothing_and_its_ids_are_dead() {
    let store = embedded(4 * MIB);
    let (gone, stays) = (client(&store), client(&store));
    let private = pool(&store, gone, PoolSpec::PERSISTENT);
    for member in [gone, stays] {
        store.authorise(member, UUID).expect("authorise");
    }
    let shared = pool(&store, gone, PoolSpec::shared_persistent(UUID));
    let kept = store.join_pool(stays, UUID).expect("join");
    assert_eq!(store.put(private, Key::new(1, 1), b"private"), Put::Stored);
    assert_eq!(store.put(shared, Key::new(1, 1), b"shared"), Put::Stored);
    store.remove_client(gone).expect("remove");
    assert!(matches!(store.statistics(gone), Err(Error::NoClient)));
    let next = client(&store);
    assert_ne!(next, gone);
    assert_eq!(store.put(private, Key::new(1, 1), b"x"), Put::Refused(Refusal::NoPool));
    assert_eq!(get(&store, kept, Key::new(1, 1)), Some(b"shared".to_vec()));
    assert_eq!(store.statistics(next).expect("statistics").used_pages, 0);
}

#[test]
fn a_page_put_in_two_steps_is_there_after_the_second() {
    let store = embedded(8 * MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let (key, page) = (Key::new(1, 1), noise(1));
    let fill = |key, page: &[u8]| {
        let page: [u8; PAGE_BYTES] = page.try_into().expect("a page");
        store.fill_page(pool, key, |frame| *frame = page)
    };
    assert_eq!(store.put(pool, key, &noise(0)), Put::Stored);
    let free = store.free_frame_bytes();
    let filled = fill(key, &page).expect("room");
    assert_eq!(get(&store, pool, key), Some(noise(0)), "it is not there yet");
    drop(filled);
    assert_eq!(store.free_frame_bytes(), free, "its frame went with it");
    assert_eq!(fill(key, &page).expect("room").publish(), Put::Stored);
    assert_eq!(get(&store, pool, key), Some(page.clone()));
    assert_eq!(store.free_frame_bytes(), free, "the old page went");
    assert_eq!(fill(key, &[7; PAGE_BYTES]).expect("room").publish(), Put::Stored);
    assert_eq!(get(&store, pool, key), Some(vec![7; PAGE_BYTES]));
    assert_eq!(
        store.free_frame_bytes(),
        free + PAGE_BYTES as u64,
        "a page of one word takes no frame"
    );

    // The target is checked when a page is published.
    store.set_target(client, 2).expect("a target");
    let two = [2, 3].map(|index| fill(Key::new(1, index), &noise(9)).expect("room"));
    assert_eq!(two.map(|filled| filled.publish()), [Put::Stored, Put::Refused(Refusal::AtTarget)]);
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 2);
    assert!(fill(Key::new(1, 4), &page).is_none(), "at its target");
    store.destroy_pool(pool).expect("a pool");
    assert!(fill(key, &page).is_none(), "no pool");
}
