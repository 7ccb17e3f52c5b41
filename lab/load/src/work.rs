//! Fills, requests and checks, with a thread for each connection.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use crate::client::CacheClient;
use crate::memory;
use crate::values::{Values, description};

/// Skew of the requests over the keys, as in YCSB.
const ZIPF: f64 = 0.99;
/// One request in this many is a set.
const SET_EVERY: u32 = 10;
/// Requests between two updates of the progress bar.
const PROGRESS_EVERY: u64 = 256;

/// The measurements of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The description of the values.
    pub description: String,
    /// Connections.
    pub connections: usize,
    /// Values set per second while filling.
    pub fills_per_second: f64,
    /// Requests per second of the mix.
    pub requests_per_second: f64,
    /// The median request time, µs.
    pub p50_us: f64,
    /// The 99th percentile of the request times, µs.
    pub p99_us: f64,
    /// Values read and compared.
    pub verified: u64,
    /// Wrong or missing values among these.
    pub wrong: u64,
    /// Memory of the server's process after the mix, bytes.
    pub pss_bytes: u64,
}

/// A server and its load.
pub struct Load<'a> {
    /// The server's Unix socket.
    pub socket: &'a Path,
    /// The values to fill it with.
    pub values: Values<'a>,
    /// Prefix of the progress bar.
    pub name: &'a str,
}

/// A connection: its keys, and the last written version of each.
struct Worker<'a> {
    client: CacheClient,
    values: Values<'a>,
    keys: Vec<(u64, u64)>,
    random: SmallRng,
    expected: Vec<u8>,
    found: Vec<u8>,
    latencies_ns: Vec<u64>,
    verified: u64,
    wrong: u64,
}

impl Load<'_> {
    /// Fills the server, sends requests for `time`, and reads every value once more.
    ///
    /// # Errors
    /// The server does not answer as expected.
    pub fn run(&self, time: Duration) -> Result<Measured> {
        let mut workers = (0..self.values.connections)
            .map(|connection| Worker::new(self.socket, self.values, connection))
            .collect::<Result<Vec<_>>>()?;
        let count = self.values.count;

        let fill = self.stage("filling", count, &mut workers, Worker::fill)?;
        let mix =
            self.stage("asking", time.as_millis().try_into()?, &mut workers, |worker, bar| {
                worker.ask(time, bar)
            })?;
        let pss_bytes = memory::pss_bytes(CacheClient::connect(self.socket)?.statistic("pid")?)?;
        self.stage("checking", count, &mut workers, Worker::check_all)?;

        let mut latencies_ns: Vec<u64> =
            workers.iter().flat_map(|worker| worker.latencies_ns.iter().copied()).collect();
        latencies_ns.sort_unstable();
        let quantile_us = |hundredths: usize| {
            let last = latencies_ns.len().saturating_sub(1);
            latencies_ns.get(last * hundredths / 100).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        Ok(Measured {
            description: description(&self.values),
            connections: self.values.connections,
            fills_per_second: count as f64 / fill.as_secs_f64(),
            requests_per_second: latencies_ns.len() as f64 / mix.as_secs_f64(),
            p50_us: quantile_us(50),
            p99_us: quantile_us(99),
            verified: workers.iter().map(|worker| worker.verified).sum(),
            wrong: workers.iter().map(|worker| worker.wrong).sum(),
            pss_bytes,
        })
    }

    /// Runs one stage on all connections at once. Returns its duration.
    fn stage<'w, F>(
        &self,
        what: &str,
        length: u64,
        workers: &mut [Worker<'w>],
        body: F,
    ) -> Result<Duration>
    where
        F: Fn(&mut Worker<'w>, &ProgressBar) -> Result<()> + Sync,
    {
        // The bar hides itself if standard error is not a terminal.
        let bar =
            ProgressBar::new(length).with_message(format!("{}: {what}", self.name)).with_style(
                ProgressStyle::with_template("{msg:34} {wide_bar} {percent:>3} % {eta:>4}")?,
            );
        let start = Instant::now();
        thread::scope(|scope| {
            let threads: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(|| body(worker, &bar))).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().map_err(|_| anyhow!("a connection's thread panicked"))?
            })
        })?;
        bar.finish_and_clear();
        Ok(start.elapsed())
    }
}

impl<'a> Worker<'a> {
    fn new(socket: &Path, values: Values<'a>, connection: usize) -> Result<Self> {
        let mut random = SmallRng::seed_from_u64(connection as u64);
        let mut keys: Vec<_> = values.keys_of(connection).into_iter().map(|key| (key, 1)).collect();
        // A key's popularity is independent of the place of its value.
        keys.shuffle(&mut random);
        Ok(Self {
            client: CacheClient::connect(socket)?,
            values,
            keys,
            random,
            expected: Vec::new(),
            found: Vec::new(),
            latencies_ns: Vec::new(),
            verified: 0,
            wrong: 0,
        })
    }

    fn fill(&mut self, bar: &ProgressBar) -> Result<()> {
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        for (done, (key, version)) in (1..).zip(keys) {
            self.values.make(key, version, &mut self.expected);
            self.client.set(key, &self.expected)?;
            if done % PROGRESS_EVERY == 0 {
                bar.inc(PROGRESS_EVERY);
            }
        }
        Ok(())
    }

    fn ask(&mut self, time: Duration, bar: &ProgressBar) -> Result<()> {
        let ranks = Zipf::new(self.keys.len() as f64, ZIPF)?;
        let start = Instant::now();
        for done in 0_u64.. {
            if done % PROGRESS_EVERY == 0 {
                bar.set_position(start.elapsed().as_millis().try_into()?);
                if start.elapsed() >= time {
                    break;
                }
            }
            let rank = ranks.sample(&mut self.random) as usize - 1;
            if self.random.random_ratio(1, SET_EVERY) {
                let (key, version) = &mut self.keys[rank];
                *version += 1;
                self.values.make(*key, *version, &mut self.expected);
                let sent = Instant::now();
                self.client.set(*key, &self.expected)?;
                self.latencies_ns.push(sent.elapsed().as_nanos().try_into()?);
            } else {
                let took = self.get_checked(rank)?;
                self.latencies_ns.push(took.as_nanos().try_into()?);
            }
        }
        Ok(())
    }

    fn check_all(&mut self, bar: &ProgressBar) -> Result<()> {
        for rank in 0..self.keys.len() {
            self.get_checked(rank)?;
            if (rank as u64).is_multiple_of(PROGRESS_EVERY) {
                bar.inc(PROGRESS_EVERY);
            }
        }
        Ok(())
    }

    /// Reads a value and compares it with the last written one. Returns the time of the answer.
    fn get_checked(&mut self, rank: usize) -> Result<Duration> {
        let (key, version) = self.keys[rank];
        let sent = Instant::now();
        let there = self.client.get(key, &mut self.found)?;
        let took = sent.elapsed();
        self.values.make(key, version, &mut self.expected);
        self.verified += 1;
        self.wrong += u64::from(!there || self.found != self.expected);
        Ok(took)
    }
}
