//! `disks`: what a guest's disk notices of another guest on the same host.
//!
//! One disk answers reads of 4 KiB from the store, one at a time. Meanwhile the other guest rests, or floods a disk of
//! its own: each of its processors keeps a queue full of long requests, beyond the target of its client. Or its
//! processors compute. The kernel divides the host's processors among all of them, and the disks should not change how.

mod guest;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use rand::RngExt;
use spillway_store::{ClientConfig, Config, Store};
use spillway_types::PAGE_BYTES;
use spillway_vhost_user_blk::{Disk, DiskConfig, Server};

use self::guest::{DEPTH_MAX, Guest, Kind, Queue, REQUEST_BYTES_MAX, Request};
use super::blocks::nbd::Folder;
use super::rows::{Report, Row, figure, median};
use super::{by_size, go_on, rounds, wanted};

/// The name in the rows.
const BENCH: &str = "disks";
/// The name of the cell.
const CELL: &str = "read 4 KiB, depth 1";
/// Size of the measured disk; all of it fits into its target.
const QUIET_BYTES: u64 = 64 << 20;
/// Size of the other disk, of which a quarter fits into its target.
const BUSY_BYTES: u64 = 256 << 20;
/// Processors of the other guest, each with a queue.
const PROCESSORS: u16 = 4;
/// Time after which the other guest is fully at work.
const LEAD: Duration = Duration::from_millis(200);

/// What the other guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neighbour {
    Rests,
    Floods,
    Computes,
}

/// The measured disk during a span.
#[derive(Clone, Copy, Debug)]
struct Sample {
    neighbour: Neighbour,
    /// Reads a second.
    rate: f64,
    p99_us: f64,
}

/// A guest and the server of its disk.
struct Served {
    guest: Guest,
    _server: Server,
}

/// Measures the disk beside its neighbour.
///
/// # Errors
/// The user's interruption. The report contains sides that fail.
pub fn run() -> anyhow::Result<Report> {
    let mut report = Report::default();
    if wanted(CELL)
        && let Some(samples) = report.keep(CELL, measure())
    {
        let of = |neighbour, figure: fn(&Sample) -> f64| {
            let its = samples.iter().filter(|sample| sample.neighbour == neighbour);
            median(its.map(figure))
        };
        let beside = |figure| {
            let computes = ("beside computing", of(Neighbour::Computes, figure));
            (of(Neighbour::Floods, figure), computes)
        };
        let (rate, other) = beside(|sample| sample.rate);
        report.rows.push(Row::new(BENCH, format!("{CELL}, beside a flood"), "1/s", rate, other));
        let (p99, other) = beside(|sample| sample.p99_us);
        report.rows.push(Row::new(BENCH, format!("{CELL}, beside a flood, p99"), "µs", p99, other));
        report.remarks.push(format!(
            "Flood: {PROCESSORS} queues, {DEPTH_MAX} requests of {} KiB in each, three quarters of them to the \
             file. Computing: {PROCESSORS} busy threads. While the neighbour rests: {} reads a second, p99 {} µs; \
             that is no bound, because processors that sleep answer later.",
            REQUEST_BYTES_MAX >> 10,
            figure(of(Neighbour::Rests, |sample| sample.rate)),
            figure(of(Neighbour::Rests, |sample| sample.p99_us)),
        ));
    }
    Ok(report)
}

fn measure() -> anyhow::Result<Vec<Sample>> {
    let folder = Folder::new()?;
    let store = Arc::new(Store::open(Config::embedded(QUIET_BYTES + BUSY_BYTES))?);
    let mut quiet = serve(&store, &folder.0, "quiet", (QUIET_BYTES, QUIET_BYTES), 1)?;
    let mut busy = serve(&store, &folder.0, "busy", (BUSY_BYTES, BUSY_BYTES / 4), PROCESSORS)?;
    let mut places = (0..QUIET_BYTES).step_by(REQUEST_BYTES_MAX as usize);
    let write = |at| Request { kind: Kind::Write, at, bytes: REQUEST_BYTES_MAX };
    quiet.guest.queues[0].run(1, || places.next().map(write))?;
    let mut samples = Vec::new();
    for _ in 0..rounds()? {
        for neighbour in [Neighbour::Rests, Neighbour::Floods, Neighbour::Computes] {
            go_on()?;
            samples.push(beside(neighbour, &mut quiet.guest.queues[0], &mut busy.guest.queues)?);
        }
    }
    Ok(samples)
}

/// Serves a disk of a client with a target, and connects a guest to it.
fn serve(
    store: &Arc<Store>,
    folder: &Path,
    name: &str,
    (bytes, target_bytes): (u64, u64),
    queues: u16,
) -> anyhow::Result<Served> {
    let target_pages = target_bytes / PAGE_BYTES as u64;
    let client = store.add_client(ClientConfig { target_pages, ..ClientConfig::default() })?;
    let config = DiskConfig {
        name: name.to_owned(),
        kind: spillway_vhost_user_blk::Kind::Swap,
        client,
        bytes,
        backing: folder.join(name),
        latency: Duration::ZERO,
    };
    let disk = Arc::new(Disk::open(Arc::clone(store), config)?);
    let socket = folder.join(format!("{name}.socket"));
    let server = Server::start(UnixListener::bind(&socket)?, disk, queues)?;
    Ok(Served { guest: Guest::connect(&socket, queues)?, _server: server })
}

/// Reads from the quiet disk for a span, while the neighbour does what it does.
fn beside(neighbour: Neighbour, quiet: &mut Queue, busy: &mut [Queue]) -> anyhow::Result<Sample> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut floods: Vec<ScopedJoinHandle<'_, anyhow::Result<()>>> = Vec::new();
        let share = BUSY_BYTES / u64::from(PROCESSORS);
        for (queue, first) in busy.iter_mut().zip((0..).step_by(share as usize)) {
            let ended = &ended;
            match neighbour {
                Neighbour::Rests => {}
                Neighbour::Floods => {
                    floods.push(scope.spawn(move || flood(queue, first, share, ended)));
                }
                Neighbour::Computes => {
                    scope.spawn(|| {
                        while !ended.load(Ordering::Relaxed) {
                            core::hint::spin_loop();
                        }
                    });
                }
            }
        }
        thread::sleep(LEAD);
        let sample = read(neighbour, quiet);
        ended.store(true, Ordering::Relaxed);
        for flood in floods {
            flood.join().map_err(|_| anyhow!("the neighbour has panicked"))??;
        }
        sample
    })
}

fn read(neighbour: Neighbour, quiet: &mut Queue) -> anyhow::Result<Sample> {
    let span = by_size(Duration::from_secs(1), Duration::from_millis(20));
    let mut random = rand::rng();
    let began = Instant::now();
    let mut took = quiet.run(1, || {
        let page = random.random_range(1..QUIET_BYTES / PAGE_BYTES as u64);
        let at = page * PAGE_BYTES as u64;
        (began.elapsed() < span).then_some(Request { kind: Kind::Read, at, bytes: 4096 })
    })?;
    let rate = took.len() as f64 / began.elapsed().as_secs_f64();
    took.sort_unstable();
    let p99_us = took.get(took.len() * 99 / 100).map_or(f64::NAN, |it| it.as_secs_f64() * 1e6);
    Ok(Sample { neighbour, rate, p99_us })
}

/// Writes and reads a part of the disk from its beginning to its end, again and again.
fn flood(queue: &mut Queue, first: u64, bytes: u64, ended: &AtomicBool) -> anyhow::Result<()> {
    let mut at = first;
    let mut kind = Kind::Write;
    queue.run(usize::from(DEPTH_MAX), || {
        let request = Request { kind, at, bytes: REQUEST_BYTES_MAX };
        at += u64::from(REQUEST_BYTES_MAX);
        if at == first + bytes {
            at = first;
            kind = if kind == Kind::Write { Kind::Read } else { Kind::Write };
        }
        (!ended.load(Ordering::Relaxed)).then_some(request)
    })?;
    Ok(())
}
