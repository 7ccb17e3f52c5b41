//! `store`: puts values into an embedded store and gets them, compared with a bare copy of the same bytes.
//!
//! The copy uses the same small buffers, and frames in the same random order from an array as large as the store's
//! content. So both sides miss the caches and the TLB equally.

mod metadata;

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use anyhow::ensure;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use spillway_store::{ClientConfig, ClientId, Config, Get, Key, PoolId, PoolSpec, Put, Store};

use super::rows::{Report, Row, median};
use super::{by_size, go_on, rounds, wanted};

/// The name in the rows.
const BENCH: &str = "store";
/// Bytes of the buffers from which values are put. They stay in the second-level cache.
const SOURCE_BYTES: usize = 256 << 10;
/// Passes over all values in one timing: about 0.1 s.
const PASSES: usize = 4;
const SIZES_BYTES: [usize; 7] = [100, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const THREADS: [usize; 2] = [1, 2];

/// Bytes of values in the store: several times the last cache.
fn held_bytes() -> usize {
    by_size(128 << 20, 8 << 20)
}

/// The direction of the bytes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Put,
    Get,
}

/// The place of the values.
#[derive(Clone, Copy, PartialEq)]
enum Placement {
    Store,
    /// A store for each thread: the bound for two threads that share only the machine's memory.
    Stores,
    Copies,
}

/// The rate of one side in one round, bytes/s.
struct Sample {
    way: Way,
    threads: usize,
    place: Placement,
    bytes_per_s: f64,
}

/// A place for values of one size.
trait StoreUnderTest: Sync {
    fn put(&self, number: usize, value: &[u8]);
    fn get(&self, number: usize, value: &mut [u8]);
}

/// Measures all sizes, then the metadata.
///
/// # Errors
/// The user's interruption. The report contains stores that refuse values or return wrong bytes.
pub fn run() -> anyhow::Result<Report> {
    let mut report = Report::default();
    for bytes in SIZES_BYTES {
        let name = size_name(bytes);
        if wanted(&name) {
            let samples = report.keep(&name, measure(bytes));
            report.rows.extend(samples.iter().flat_map(|samples| rows(&name, samples)));
            go_on()?;
        }
    }
    if wanted("sampling") {
        let samples = report.keep("sampling", sampling());
        report.rows.extend(samples.into_iter().flatten());
        go_on()?;
    }
    if wanted("metadata") {
        metadata::rows(&mut report)?;
    }
    report.remarks.push(format!(
        "put: in place of a value of the same size, incompressible and stored raw. {} MiB of \
         values on each side, in random order; every first word got is checked. Two threads work \
         on keys of their own in one store; \
         \"two stores\": each in a store of its own. Metadata: the process's resident memory, less 4 KiB \
         for each page that has a frame, by page; and the store's own count of the same.",
        held_bytes() >> 20
    ));
    Ok(report)
}

fn measure(bytes: usize) -> anyhow::Result<Vec<Sample>> {
    let count = held_bytes() / bytes;
    let store = Embedded::open()?;
    let copies = Copies::new(count, bytes);
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(bytes as u64));
    let stores = Stores::open(&order)?;
    let sides = [
        (Placement::Store, &store as &dyn StoreUnderTest),
        (Placement::Stores, &stores),
        (Placement::Copies, &copies),
    ];
    for (_, side) in sides {
        pass(side, Way::Put, &order, 1, bytes)?;
    }
    let mut samples = Vec::new();
    let rounds = rounds()?;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: {}", size_name(bytes));
        for threads in THREADS {
            for way in [Way::Put, Way::Get] {
                for (place, side) in sides {
                    if place == Placement::Stores && threads == 1 {
                        continue;
                    }
                    go_on()?;
                    let mut seconds = 0.0;
                    for _ in 0..PASSES {
                        seconds += pass(side, way, &order, threads, bytes)?;
                    }
                    let bytes_per_s = (PASSES * count * bytes) as f64 / seconds;
                    samples.push(Sample { way, threads, place, bytes_per_s });
                }
            }
        }
    }
    Ok(samples)
}

/// Measures a store that samples reuse distances, compared with one that does not.
fn sampling() -> anyhow::Result<Vec<Row>> {
    const BYTES: usize = 4 << 10;
    let stores = [Embedded::open()?, Embedded::open()?];
    let mut order: Vec<usize> = (0..held_bytes() / BYTES).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(3));
    let mut rates = [const { Vec::new() }; 4];
    let rounds = 2 * rounds()?;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: sampling");
        // The memory layout of one of them may be better, so they alternate.
        let watched = round % 2;
        for (at, store) in stores.iter().enumerate() {
            store.sample(at == watched)?;
            pass(store, Way::Put, &order, 1, BYTES)?;
        }
        for (way_at, way) in [Way::Put, Way::Get].into_iter().enumerate() {
            let mut seconds = [0.0; 2];
            for turn in 0..2 * PASSES {
                go_on()?;
                let at = (turn + turn / 2) % 2;
                seconds[usize::from(at != watched)] += pass(&stores[at], way, &order, 1, BYTES)?;
            }
            for side in 0..2 {
                rates[2 * way_at + side].push((PASSES * order.len()) as f64 / seconds[side] / 1e6);
            }
        }
    }
    let [put, put_off, get, get_off] = rates.map(median);
    let row = |metric, ours, other| Row::new(BENCH, metric, "M/s", ours, ("no sampling", other));
    Ok(vec![row("put 4 KiB, sampling", put, put_off), row("get 4 KiB, sampling", get, get_off)])
}

/// Puts or gets every value once. Returns the time, s.
fn pass(
    side: &dyn StoreUnderTest,
    way: Way,
    order: &[usize],
    threads: usize,
    bytes: usize,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let wrong: u64 = thread::scope(|scope| {
        let parts = order.chunks(order.len().div_ceil(threads));
        let running: Vec<_> = parts
            .map(|part| {
                scope.spawn(move || match way {
                    Way::Put => put_all(side, part, bytes),
                    Way::Get => get_all(side, part, bytes),
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(1)).sum()
    });
    let seconds = began.elapsed().as_secs_f64();
    ensure!(wrong == 0, "{wrong} values came back wrong");
    Ok(seconds)
}

fn put_all(side: &dyn StoreUnderTest, numbers: &[usize], bytes: usize) -> u64 {
    let buffers = (SOURCE_BYTES / bytes).clamp(1, 64);
    let mut source = vec![0; buffers * bytes];
    SmallRng::seed_from_u64(1).fill_bytes(&mut source);
    for &number in numbers {
        let value = &mut source[number % buffers * bytes..][..bytes];
        value[..8].copy_from_slice(&(number as u64).to_ne_bytes());
        side.put(number, value);
    }
    0
}

fn get_all(side: &dyn StoreUnderTest, numbers: &[usize], bytes: usize) -> u64 {
    let mut value = vec![0; bytes];
    let mut wrong = 0;
    for &number in numbers {
        side.get(number, &mut value);
        wrong += u64::from(value[..8] != (number as u64).to_ne_bytes());
    }
    wrong
}

/// A store with one persistent pool.
struct Embedded {
    /// The store.
    pub store: Store,
    /// Its pool.
    pub pool: PoolId,
    client: ClientId,
}

impl Embedded {
    fn open() -> anyhow::Result<Self> {
        Self::with_capacity(16 * held_bytes() as u64)
    }

    /// Opens an empty store of at most `capacity_bytes`.
    pub fn with_capacity(capacity_bytes: u64) -> anyhow::Result<Self> {
        let store = Store::open(Config::embedded(capacity_bytes))?;
        let client = store.add_client(ClientConfig::default())?;
        let pool = store.create_pool(client, PoolSpec::PERSISTENT)?;
        Ok(Self { store, pool, client })
    }

    /// Turns the sampling of reuse distances on or off.
    fn sample(&self, on: bool) -> anyhow::Result<()> {
        Ok(self.store.set_sampling(self.client, on)?)
    }
}

/// The key of a page by its number, as in the pager.
pub fn key(number: usize) -> Key {
    Key::new(number as u64 >> 20, number as u32 & 0xf_ffff)
}

impl StoreUnderTest for Embedded {
    fn put(&self, number: usize, value: &[u8]) {
        // A refused put appears as a wrong value at the next get.
        let _ = black_box::<Put>(self.store.put(self.pool, key(number), value));
    }

    fn get(&self, number: usize, value: &mut [u8]) {
        if !matches!(self.store.get(self.pool, key(number), value), Ok(Get::Hit(_))) {
            value.fill(0xff);
        }
    }
}

/// A store for each of two threads.
struct Stores {
    stores: [Embedded; 2],
    /// The thread of each value.
    thread: Vec<u8>,
}

impl Stores {
    fn open(order: &[usize]) -> anyhow::Result<Self> {
        let mut thread = vec![0; order.len()];
        for &number in &order[order.len().div_ceil(2)..] {
            thread[number] = 1;
        }
        Ok(Self { stores: [Embedded::open()?, Embedded::open()?], thread })
    }
}

impl StoreUnderTest for Stores {
    fn put(&self, number: usize, value: &[u8]) {
        self.stores[usize::from(self.thread[number])].put(number, value);
    }

    fn get(&self, number: usize, value: &mut [u8]) {
        self.stores[usize::from(self.thread[number])].get(number, value);
    }
}

/// Frames of one size in one array.
struct Copies {
    start: *mut u8,
    bytes: usize,
    _frames: Vec<u8>,
}

// SAFETY: each frame occurs once in the order, so the threads of a pass access different frames.
unsafe impl Sync for Copies {}

impl Copies {
    fn new(count: usize, bytes: usize) -> Self {
        let mut frames = vec![0; count * bytes];
        Self { start: frames.as_mut_ptr(), bytes, _frames: frames }
    }
}

impl StoreUnderTest for Copies {
    fn put(&self, number: usize, value: &[u8]) {
        let frame = self.start.wrapping_add(number * self.bytes);
        // SAFETY: the frame lies within the array, and the value has its size.
        unsafe { frame.copy_from_nonoverlapping(black_box(value.as_ptr()), self.bytes) };
    }

    fn get(&self, number: usize, value: &mut [u8]) {
        let frame = self.start.wrapping_add(number * self.bytes);
        // SAFETY: as above.
        unsafe { frame.copy_to_nonoverlapping(black_box(value.as_mut_ptr()), self.bytes) };
    }
}

fn rows(name: &str, samples: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (way, verb) in [(Way::Put, "put"), (Way::Get, "get")] {
        let rate = |threads: usize, place: Placement| {
            let wanted = (way, threads, place);
            let mine = samples.iter().filter(|it| (it.way, it.threads, it.place) == wanted);
            median(mine.map(|sample| sample.bytes_per_s / 1e6))
        };
        for threads in THREADS {
            let metric = format!("{verb} {name} {threads}t");
            let other = ("memcpy", rate(threads, Placement::Copies));
            rows.push(Row::new(BENCH, metric, "MB/s", rate(threads, Placement::Store), other));
        }
        let shared = rate(2, Placement::Store);
        let other = ("two stores", rate(2, Placement::Stores));
        rows.push(Row::new(BENCH, format!("{verb} {name} 2t"), "MB/s", shared, other));
        let scaling = |place| rate(2, place) / rate(1, place);
        let other = ("memcpy", scaling(Placement::Copies));
        let metric = format!("{verb} {name} 2t over 1t");
        rows.push(Row::new(BENCH, metric, "x", scaling(Placement::Store), other));
    }
    rows
}

fn size_name(bytes: usize) -> String {
    match bytes {
        small if small < 1 << 10 => format!("{small} B"),
        middle if middle < 1 << 20 => format!("{} KiB", middle >> 10),
        large => format!("{} MiB", large >> 20),
    }
}
