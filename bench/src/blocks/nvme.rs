//! NVMe/TCP: Spillway's client and target, compared with the floor.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use spillway_client::{Get, Key, Operation, Outcome, Pool, PoolSpec, Put};
use spillway_nvme_tcp::{Config, Server, Target};
use spillway_store::{ClientConfig, Store};

use super::fio::{Measured, Way};
use super::registry::FakeRegistry;
use super::{BENCH, BLOCK, DEPTHS, floor};
use crate::rows::{Report, Row, median};
use crate::{by_size, go_on, rounds, wanted};

/// Values in the pool.
const VALUES: u32 = 16 << 10;
/// Time of a run.
const TIME: Duration = Duration::from_secs(1);
const TIME_CI: Duration = Duration::from_millis(100);
/// Operations passed to the client at once at a depth above 1: enough that the start and end of a batch hardly count.
const BATCH: usize = 2048;

/// One round of one side of a cell.
struct Sample {
    cell: (Way, u32),
    ours: bool,
    measured: Measured,
}

/// Measures all cells.
pub fn run(report: &mut Report) -> anyhow::Result<()> {
    if wanted("nvme/tcp") {
        let samples = report.keep("nvme/tcp", measure());
        report.rows.extend(samples.iter().flat_map(|samples| rows(samples)));
        go_on()?;
    }
    Ok(())
}

fn measure() -> anyhow::Result<Vec<Sample>> {
    let store = Arc::new(Store::open(spillway_store::Config::embedded(256 << 20))?);
    let client = store.add_client(ClientConfig::default())?;
    let registry = Arc::new(FakeRegistry { client, device: None });
    let target = Target::new(store, registry.clone(), registry, Config::default())?;
    let server = Server::start(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, target, None)?;
    let mut samples = Vec::new();
    let rounds = rounds()?;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: nvme/tcp");
        for depth in DEPTHS {
            let side = Side::connect(&server, depth)?;
            for way in [Way::Write, Way::Read] {
                let cell = (way, depth);
                let measured = side.run(way, depth)?;
                samples.push(Sample { cell, ours: true, measured });
                go_on()?;
                let measured = floor::run(way, depth, by_size(TIME, TIME_CI))?;
                samples.push(Sample { cell, ours: false, measured });
                go_on()?;
            }
            side.store.close_pool(side.pool)?;
        }
    }
    server.stop();
    Ok(samples)
}

/// A client with its own pool.
struct Side {
    store: Box<dyn spillway_client::Store>,
    pool: Pool,
}

impl Side {
    fn connect(server: &Server, depth: u32) -> anyhow::Result<Self> {
        let depth = depth.max(2);
        let url = format!("nvme+tcp://{}?queues=1&depth={depth}", server.address());
        let store = spillway_client::open(&url)?;
        let pool = store.open_pool(PoolSpec::PERSISTENT)?;
        let side = Self { store, pool };
        for first in (0..VALUES).step_by(BATCH) {
            let keys: Vec<Key> = (first..first + BATCH as u32).map(|at| Key::new(1, at)).collect();
            side.put_all(&keys, &mut values())?;
        }
        Ok(side)
    }

    fn run(&self, way: Way, depth: u32) -> anyhow::Result<Measured> {
        let mut random = SmallRng::seed_from_u64(5);
        let mut values = values();
        let (began, mut done, mut times_us) = (Instant::now(), 0, Vec::new());
        let time = by_size(TIME, TIME_CI);
        while began.elapsed() < time {
            let count = if depth == 1 { 1 } else { BATCH };
            let keys: Vec<Key> =
                (0..count).map(|_| Key::new(1, random.random_range(0..VALUES))).collect();
            let start = Instant::now();
            match way {
                Way::Read => self.get_all(&keys, &mut values)?,
                Way::Write => self.put_all(&keys, &mut values)?,
            }
            times_us.push(start.elapsed().as_secs_f64() * 1e6);
            done += count;
        }
        let rate = done as f64 / began.elapsed().as_secs_f64();
        Ok(Measured { rate, median_us: median(times_us) })
    }

    fn put_all(&self, keys: &[Key], values: &mut [Vec<u8>]) -> anyhow::Result<()> {
        for (key, value) in keys.iter().zip(&mut *values) {
            value[..4].copy_from_slice(&key.index.to_ne_bytes());
        }
        let pool = self.pool;
        let operations = keys.iter().zip(values);
        let operations = operations.map(|(&key, value)| Operation::Put { pool, key, value });
        self.carry_out(operations.collect(), &Outcome::Put(Put::Stored))
    }

    fn get_all(&self, keys: &[Key], values: &mut [Vec<u8>]) -> anyhow::Result<()> {
        let pool = self.pool;
        let operations = keys.iter().zip(&mut *values);
        let operations = operations.map(|(&key, value)| Operation::Get { pool, key, value });
        self.carry_out(operations.collect(), &Outcome::Get(Get::Hit(BLOCK)))?;
        let right = |(key, value): (&Key, &Vec<u8>)| value[..4] == key.index.to_ne_bytes();
        ensure!(keys.iter().zip(values.iter()).all(right), "another value came back");
        Ok(())
    }

    fn carry_out(
        &self,
        mut operations: Vec<Operation<'_>>,
        expected: &Outcome,
    ) -> anyhow::Result<()> {
        if let [operation] = operations.as_mut_slice() {
            let outcome = self.store.execute(operation)?;
            ensure!(outcome == *expected, "{outcome:?}");
            return Ok(());
        }
        let mut outcomes = Vec::new();
        self.store.batch(&mut operations, &mut outcomes);
        for outcome in outcomes {
            let outcome = outcome?;
            ensure!(outcome == *expected, "{outcome:?}");
        }
        Ok(())
    }
}

/// Incompressible values for one batch.
fn values() -> Vec<Vec<u8>> {
    let mut random = SmallRng::seed_from_u64(7);
    let mut value = || {
        let mut value = vec![0; BLOCK];
        random.fill_bytes(&mut value);
        value
    };
    (0..BATCH).map(|_| value()).collect()
}

fn rows(samples: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    for way in [Way::Read, Way::Write] {
        for depth in DEPTHS {
            let of = |ours: bool, figure: fn(&Measured) -> f64| {
                let mine = samples.iter().filter(|s| s.cell == (way, depth) && s.ours == ours);
                median(mine.map(|sample| figure(&sample.measured)))
            };
            let name = format!("nvme/tcp {} depth {depth}", way.name());
            let rate = |ours| of(ours, |measured| measured.rate / 1e3);
            let time = |ours| of(ours, |measured| measured.median_us);
            let other = |figure| ("TCP ping-pong", figure);
            rows.push(Row::new(BENCH, &name, "kIOPS", rate(true), other(rate(false))));
            if depth == 1 {
                let metric = format!("{name} p50");
                rows.push(Row::new(BENCH, metric, "us", time(true), other(time(false))));
            }
        }
    }
    rows
}
