//! `ring`: another process puts and gets values. Compared with memcached and Redis on Unix sockets, and with a bare
//! ring in shared memory that only polls and copies.
//!
//! The servers run on the second core, the client on the first. All have the same values under the same keys, and get
//! requests in the same random order.

mod bare;
mod crowded;
mod process;
mod servers;
mod sides;

use std::time::{Duration, Instant};

use anyhow::Context;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::rows::{Report, Row, median};
use super::{by_size, go_on, rounds, wanted};
use bare::Bare;
use process::{Child, pin};
use servers::{Dialect, Server};
use sides::{Flight, Ring, Side, Way};

const BENCH: &str = "ring";
/// Bytes of the page-sized values on each side: several times the last cache.
const HELD_BYTES: usize = 128 << 20;
/// Number of short values on each side.
const SHORT_VALUES: usize = 100_000;
/// Operations between two reads of the clock.
const STRIDE: usize = 256;
/// Time of a measurement of a side, and their number in a round: many short ones, so that occasional disturbances of
/// the machine do not affect the median.
const SPAN: Duration = Duration::from_millis(30);
const SPANS: usize = 5;
/// Operations in flight of the deep cells.
pub const DEEP: usize = 16;
/// Time for which idle processes are measured.
const IDLE_S: u64 = 5;
const IDLE_CI_S: u64 = 1;
/// Pause before an operation, so that the server is asleep, and the number of these operations.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSES: usize = 100;

/// One kind of measurement.
struct Cell {
    name: &'static str,
    bytes: usize,
    count: usize,
    way: Way,
    flight: Flight,
}

const PAGES: usize = HELD_BYTES / 4096;

const CELLS: [Cell; 8] = [
    cell("get 4 KiB, depth 1", 4096, PAGES, Way::Get, Flight::One),
    cell("put 4 KiB, depth 1", 4096, PAGES, Way::Put, Flight::One),
    cell("get 4 KiB, depth 16", 4096, PAGES, Way::Get, Flight::Window),
    cell("put 4 KiB, depth 16", 4096, PAGES, Way::Put, Flight::Window),
    cell("get 100 B, depth 1", 100, SHORT_VALUES, Way::Get, Flight::One),
    cell("put 100 B, depth 1", 100, SHORT_VALUES, Way::Put, Flight::One),
    cell("get 100 B, batches of 16", 100, SHORT_VALUES, Way::Get, Flight::Batches),
    cell("put 100 B, batches of 16", 100, SHORT_VALUES, Way::Put, Flight::Batches),
];

const fn cell(name: &'static str, bytes: usize, count: usize, way: Way, flight: Flight) -> Cell {
    Cell { name, bytes, count, way, flight }
}

/// Measures all cells, then the cost and benefit of sleeping.
///
/// # Errors
/// A server that can't be started, a wrong value, or the user's interruption.
pub fn run() -> anyhow::Result<Report> {
    pin(0)?;
    let mut report = Report::default();
    for bytes in [4096, 100] {
        let cells: Vec<&Cell> =
            CELLS.iter().filter(|cell| cell.bytes == bytes && wanted(cell.name)).collect();
        if !cells.is_empty() {
            rates(&mut report, &cells)?;
        }
    }
    if wanted("asleep") {
        asleep(&mut report)?;
    }
    if wanted(crowded::CELL) {
        crowded::measure(&mut report)?;
    }
    report.remarks.push(format!(
        "Rates are of one client thread on one core and one server thread on another. put: in place of \
         a value of the same size. Depth 16: the ring and the bare ring keep 16 in flight; the servers \
         get 16 requests in one write and answer them (pipelining). {} MiB of pages, or {SHORT_VALUES} \
         short values, in random order; the first word of every value got is checked. Asleep: µs, so \
         below 1 is better.",
        HELD_BYTES >> 20
    ));
    Ok(report)
}

/// Measures cells with values of one size, all sides alternately.
fn rates(report: &mut Report, cells: &[&Cell]) -> anyhow::Result<()> {
    let (bytes, count) = (cells[0].bytes, cells[0].count);
    let mut daemon = Child::ring_server(process::Polling::Yes)?;
    let mut memcached = Child::memcached()?;
    let mut redis = Child::redis()?;
    let mut sides: Vec<(&str, Box<dyn Side>)> = vec![
        ("spillway", Box::new(Ring::connect(daemon.socket(), bytes)?)),
        ("bare ring", Box::new(Bare::start(count, bytes)?)),
        ("memcached", Box::new(Server::connect(memcached.socket(), Dialect::Memcached, bytes)?)),
        ("redis", Box::new(Server::connect(redis.socket(), Dialect::Redis, bytes)?)),
    ];
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(bytes as u64));
    for (name, side) in &mut sides {
        for numbers in order.chunks(STRIDE) {
            side.run(Way::Put, Flight::Batches, numbers).context(*name)?;
        }
        side.rest();
    }
    let mut samples = vec![vec![Vec::new(); sides.len()]; cells.len()];
    let rounds = rounds()?;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: values of {bytes} bytes");
        for (cell, samples) in cells.iter().zip(&mut samples) {
            for _ in 0..SPANS {
                for ((name, side), samples) in sides.iter_mut().zip(&mut *samples) {
                    go_on()?;
                    samples.push(rate(&mut **side, cell, &order).context(*name)?);
                }
            }
        }
    }
    for (cell, samples) in cells.iter().zip(samples) {
        let rates: Vec<f64> = samples.into_iter().map(median).collect();
        let others: Vec<(&str, f64)> =
            sides.iter().map(|side| side.0).zip(rates.iter().copied()).skip(1).collect();
        for other in others {
            report.rows.push(Row::new(BENCH, cell.name, "kops/s", rates[0], other));
        }
    }
    drop(sides);
    for child in [&mut daemon, &mut memcached, &mut redis] {
        child.end()?;
    }
    Ok(())
}

/// The rate of a side, thousands of operations per second.
fn rate(side: &mut dyn Side, cell: &Cell, order: &[usize]) -> anyhow::Result<f64> {
    // A few untimed operations: the side's memory may have left the caches.
    side.run(cell.way, cell.flight, &order[..STRIDE])?;
    let start = Instant::now();
    let mut done = 0;
    for numbers in order.chunks_exact(STRIDE).cycle().skip(1) {
        side.run(cell.way, cell.flight, numbers)?;
        done += numbers.len();
        if start.elapsed() >= SPAN {
            break;
        }
    }
    let rate = done as f64 / start.elapsed().as_secs_f64() / 1e3;
    side.rest();
    Ok(rate)
}

/// Measures the ring with sides that sleep, compared with Redis, which always does.
fn asleep(report: &mut Report) -> anyhow::Result<()> {
    let mut daemon = Child::ring_server(process::Polling::Yes)?;
    let mut sleeper = Child::ring_server(process::Polling::No)?;
    let mut redis = Child::redis()?;
    let mut ring = Ring::connect(daemon.socket(), 4096)?;
    let mut sleeping = Ring::connect_sleeping(sleeper.socket(), 4096)?;
    let mut other = Server::connect(redis.socket(), Dialect::Redis, 4096)?;
    let numbers: Vec<usize> = (0..STRIDE).collect();
    for side in [&mut ring as &mut dyn Side, &mut sleeping, &mut other] {
        side.run(Way::Put, Flight::One, &numbers)?;
    }
    let (mut woken, mut asleep, mut theirs) = (Vec::new(), [Vec::new(), Vec::new()], Vec::new());
    for _ in 0..rounds()? {
        woken.push(pauses(&mut ring)?);
        theirs.push(pauses(&mut other)?);
        for (side, samples) in
            [&mut sleeping as &mut dyn Side, &mut other].into_iter().zip(&mut asleep)
        {
            go_on()?;
            let start = Instant::now();
            for _ in 0..8 {
                side.run(Way::Get, Flight::One, &numbers)?;
            }
            samples.push(start.elapsed().as_secs_f64() * 1e6 / (8 * STRIDE) as f64);
        }
    }
    let [asleep, redis_us] = asleep.map(median);
    report.rows.push(Row::new(
        BENCH,
        "get 4 KiB, depth 1, both sides asleep each time",
        "µs",
        asleep,
        ("redis", redis_us),
    ));
    report.rows.push(Row::new(
        BENCH,
        "get 4 KiB after 1 ms of nothing, server asleep",
        "µs",
        median(woken),
        ("redis", median(theirs)),
    ));
    let before = [daemon.cpu_ms()?, redis.cpu_ms()?, process::own_cpu_ms()?];
    let idle_s = by_size(IDLE_S, IDLE_CI_S);
    std::thread::sleep(Duration::from_secs(idle_s));
    let after = [daemon.cpu_ms()?, redis.cpu_ms()?, process::own_cpu_ms()?];
    let [ours, theirs, own] = std::array::from_fn(|at| after[at] - before[at]);
    report.rows.push(Row::new(
        BENCH,
        format!("CPU time of an idle server and its client in {idle_s} s"),
        "ms",
        ours + own,
        ("redis, its server alone", theirs),
    ));
    drop((ring, sleeping, other));
    for child in [&mut daemon, &mut sleeper, &mut redis] {
        child.end()?;
    }
    Ok(())
}

/// The median time of a get after a pause, µs.
fn pauses(side: &mut dyn Side) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for number in 0..PAUSES {
        std::thread::sleep(PAUSE);
        let start = Instant::now();
        side.run(Way::Get, Flight::One, &[number])?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}
