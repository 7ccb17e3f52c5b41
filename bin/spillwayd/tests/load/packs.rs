//! A daemon with nothing configured but its capacity packs, before it refuses a put.

use std::time::{Duration, Instant};

use spillway_client::{
    Get, Key, Operation, Outcome, PAGE_BYTES, Pool, PoolSpec, Put, Refusal, Store,
};
use spillway_test_support::pages::compressible;
use spillway_test_support::wait::until;
use spillway_tiers::lz4::{PACKED_BYTES, Table, pack};

use crate::daemon::Daemon;

const CAPACITY_BYTES: u64 = 32 << 20;
/// Requests that are under way at a time.
const BATCH: u32 = 64;

fn key(number: u32) -> Key {
    Key::new(u64::from(number >> 12), number & 0xfff)
}

/// A mix of pages: how many bytes of page `number` are random.
type Mix = fn(u32) -> usize;

/// Bytes that packing leaves of a page.
fn left(page: &[u8; PAGE_BYTES], table: &mut Table) -> usize {
    let length = pack(page, &mut [0; PACKED_BYTES], table);
    if length > PAGE_BYTES * 3 / 4 { PAGE_BYTES } else { length }
}

/// Puts pages as fast as the ring takes them, until one is refused. Gives how many were stored before, and
/// what part that is of what there could be at best.
fn fill(store: &dyn Store, pool: Pool, mix: Mix) -> (u32, f64) {
    let (mut table, mut bytes) = (Table::default(), 0);
    let mut outcomes = Vec::new();
    for first in (0..).step_by(BATCH as usize) {
        let pages: Vec<_> = (first..first + BATCH).map(|n| compressible(n, mix(n))).collect();
        let put = |(value, number)| Operation::Put { pool, key: key(number), value };
        let values = pages.iter().map(<[u8; PAGE_BYTES]>::as_slice);
        let mut operations: Vec<_> = values.zip(first..).map(put).collect();
        store.batch(&mut operations, &mut outcomes);
        for ((outcome, number), page) in outcomes.iter().zip(first..).zip(&pages) {
            match outcome.as_ref().expect("put") {
                Outcome::Put(Put::Stored) => bytes += left(page, &mut table),
                Outcome::Put(Put::Refused(Refusal::NodeFull)) => {
                    let best = CAPACITY_BYTES as f64 / (bytes as f64 / f64::from(number));
                    return (number, f64::from(number) / best);
                }
                other => panic!("page {number}: {other:?}"),
            }
        }
    }
    unreachable!()
}

fn assert_pages(store: &dyn Store, pool: Pool, count: u32, mix: Mix) {
    for number in 0..count {
        let mut value = [0; PAGE_BYTES];
        let got = store.get(pool, key(number), &mut value).expect("get");
        assert_eq!(got, Get::Hit(PAGE_BYTES), "page {number}");
        assert!(value == compressible(number, mix(number)), "page {number}");
    }
}

/// Pages that are packed, by the daemon's metrics.
fn compressed(daemon: &Daemon) -> u64 {
    let name = "spillway_store_compressed_bytes";
    let text =
        String::from_utf8(daemon.ask("GET", "/metrics", b"").expect("metrics")).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let bytes: u64 = line.expect("a metric of this name").parse().expect("a number");
    bytes / PAGE_BYTES as u64
}

/// Time that a process has run, all its threads together.
fn ran(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, rest) = stat.rsplit_once(") ").expect("a name");
    let ticks: u64 =
        rest.split(' ').skip(11).take(2).map(|text| text.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

fn daemon() -> Daemon {
    Daemon::start(&[&format!("store.capacity={CAPACITY_BYTES}")])
}

#[test]
fn a_full_daemon_has_packed_before_it_refuses() {
    let mixes: [(&str, Mix); 2] = [
        ("two to one", |_| 2040),
        ("five eighths", |n| if n.wrapping_mul(0x9e37_79b9) >> 29 < 5 { 2040 } else { 4092 }),
    ];
    for (name, mix) in mixes {
        let daemon = daemon();
        let store = daemon.connect(Duration::from_secs(5));
        let pool = store.open_pool(PoolSpec::PERSISTENT).expect("pool");
        let begin = Instant::now();
        let (stored, part) = fill(&*store, pool, mix);
        let speed = u64::from(stored) * PAGE_BYTES as u64 / begin.elapsed().as_micros() as u64;
        eprintln!("{name}: {stored} pages, {part:.3} of the best, {speed} MB/s");
        assert!(part >= 0.95, "{name}: {stored} pages, {part:.3} of the best");
        let packed = compressed(&daemon);
        assert!(packed > u64::from(stored) / 2, "{name}: {packed} compressed pages");
        assert_pages(&*store, pool, stored, mix);
    }
}

#[test]
fn packing_goes_on_ahead_of_puts_and_rests_when_it_is_futile() {
    let daemon = daemon();
    let store = daemon.connect(Duration::from_secs(5));
    let pool = store.open_pool(PoolSpec::PERSISTENT).expect("pool");
    // Short of full: nobody is refused, and nobody waits for it.
    for number in 0..7600 {
        assert_eq!(
            store.put(pool, key(number), &compressible(number, 2040)).expect("put"),
            Put::Stored
        );
    }
    until("pages that are packed ahead", || compressed(&daemon) >= 500);
    let pid = daemon.pid().expect("a daemon");
    store.close_pool(pool).expect("close");
    let pool = store.open_pool(PoolSpec::PERSISTENT).expect("pool");
    let (stored, _) = fill(&*store, pool, |_| 4092);
    std::thread::sleep(Duration::from_millis(500));
    let before = ran(pid);
    std::thread::sleep(Duration::from_secs(2));
    let busy = ran(pid) - before;
    assert!(
        busy < Duration::from_millis(100),
        "{busy:?} of two seconds for {stored} pages that do not pack"
    );
}
