//! The load of the memcached study: a cache of web pages, as in section 6 of the memory-blade paper.

mod arrivals;
mod connection;
mod curve;
mod histogram;
mod pages;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::Serialize;

use crate::client::CacheClient;
use crate::values::Corpus;
use arrivals::Arrivals;
use connection::{Connection, Counts};
use histogram::{Histogram, Latencies};
use pages::Trace;

/// Fills a cache to the state after half of the trace, then continues with the other half.
#[derive(Args, Debug)]
pub struct Study {
    /// The server: HOST:PORT, or the path of its Unix socket.
    #[arg(long)]
    server: String,
    #[command(flatten)]
    trace: Trace,
    /// Duration of each loop, seconds. An uncounted quarter of it runs before.
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Requests per second of the open loop. Without it there is only a closed loop.
    #[arg(long)]
    rate: Option<f64>,
    /// The file for the measurements.
    #[arg(long)]
    output: PathBuf,
}

/// Replays the whole trace into an empty cache.
#[derive(Args, Debug)]
pub struct Replay {
    /// The server: HOST:PORT, or the path of its Unix socket.
    #[arg(long)]
    server: String,
    #[command(flatten)]
    trace: Trace,
    /// The file for the measurements.
    #[arg(long)]
    output: PathBuf,
}

/// Computes the hit fraction over the capacity.
#[derive(Args, Debug)]
pub struct Curve {
    #[command(flatten)]
    trace: Trace,
    /// The file for the points.
    #[arg(long)]
    output: PathBuf,
}

/// The measurements of one loop.
#[derive(Debug, Serialize)]
struct Phase {
    /// `closed` or `open`; `replay`, `fill` and `check` are closed too.
    name: &'static str,
    /// When it began and ended, seconds since 1970.
    began_s: f64,
    ended_s: f64,
    /// Due requests per second; null in a closed loop.
    rate: Option<f64>,
    requests_per_second: f64,
    counts: Counts,
    latencies: Latencies,
}

/// The measurements of a run.
#[derive(Debug, Serialize)]
struct Measured {
    trace_keys: u64,
    seed: u64,
    connections: u64,
    phases: Vec<Phase>,
    verified: u64,
    wrong: u64,
    /// Values that the server evicted for lack of space.
    evictions: u64,
}

impl Study {
    /// Runs the load and writes the measurements.
    ///
    /// # Errors
    /// The server does not answer as expected, or a value is wrong.
    pub fn run(&self) -> Result<()> {
        ensure!(self.seconds > 0.0 && self.seconds <= 3600.0, "--seconds: not in (0, 3600]");
        ensure!(self.rate.is_none_or(|rate| rate > 0.0 && rate < 1e9), "--rate: not in (0, 1e9)");
        // Threads inherit this: then a sleep ends on time instead of up to 50 µs later.
        fs::write("/proc/self/timerslack_ns", "1").context("/proc/self/timerslack_ns")?;
        let (corpus, trace) = (Corpus::load()?, self.trace.checked()?);
        let mut connections = connect(&self.server, trace, &corpus)?;
        let time = Duration::from_secs_f64(self.seconds);
        let mut phases = vec![phase("fill", None, &mut connections, |it, _| it.fill())?];
        phases.push(phase("warm", None, &mut connections, |it, _| it.closed(time / 4))?);
        phases.push(phase("closed", None, &mut connections, |it, _| it.closed(time))?);
        if let Some(rate) = self.rate {
            let per_connection = rate / trace.connections as f64;
            let began = Instant::now();
            let body = |it: &mut Connection<'_>, number| {
                let seed = trace.seed << 16 ^ number;
                it.open(began, time, Arrivals::new(per_connection, seed)?)
            };
            phases.push(phase("open", Some(rate), &mut connections, body)?);
        }
        phases.push(phase("check", None, &mut connections, |it, _| it.check())?);
        finish(&self.server, &trace, phases, &self.output)
    }
}

impl Replay {
    /// Replays the trace and writes the measurements.
    ///
    /// # Errors
    /// The server does not answer as expected, or a value is wrong.
    pub fn run(&self) -> Result<()> {
        let (corpus, trace) = (Corpus::load()?, self.trace.checked()?);
        let mut connections = connect(&self.server, trace, &corpus)?;
        let phases = vec![phase("replay", None, &mut connections, |it, _| it.replay())?];
        finish(&self.server, &trace, phases, &self.output)
    }
}

impl Curve {
    /// Computes the curve and writes the points.
    ///
    /// # Errors
    /// The trace's options are invalid.
    pub fn run(&self) -> Result<()> {
        write(&self.output, &curve::hit_curve(&self.trace)?)
    }
}

fn connect<'a>(server: &str, trace: Trace, corpus: &'a Corpus) -> Result<Vec<Connection<'a>>> {
    (0..trace.connections).map(|number| Connection::new(server, trace, corpus, number)).collect()
}

/// Runs one loop on all connections at once.
fn phase<'a, F>(
    name: &'static str,
    rate: Option<f64>,
    connections: &mut [Connection<'a>],
    body: F,
) -> Result<Phase>
where
    F: Fn(&mut Connection<'a>, u64) -> Result<()> + Sync,
{
    let body = &body;
    let began_s = unix_s()?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&mut *connections)
            .map(|(number, it)| scope.spawn(move || body(it, number)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a connection's thread panicked"))?
        })
    })
    .with_context(|| format!("in the phase {name}"))?;
    let ended_s = unix_s()?;
    let (mut counts, mut times) = (Counts::default(), Histogram::new());
    for connection in connections {
        counts.merge(&std::mem::take(&mut connection.counts));
        times.merge(&std::mem::replace(&mut connection.times, Histogram::new()));
    }
    let requests_per_second = counts.requests() as f64 / (ended_s - began_s);
    let latencies = times.latencies();
    Ok(Phase { name, began_s, ended_s, rate, requests_per_second, counts, latencies })
}

fn finish(server: &str, trace: &Trace, phases: Vec<Phase>, output: &Path) -> Result<()> {
    let sum = |part: fn(&Counts) -> u64| phases.iter().map(|phase| part(&phase.counts)).sum();
    let measured = Measured {
        trace_keys: trace.keys(),
        seed: trace.seed,
        connections: trace.connections,
        verified: sum(|counts| counts.verified),
        wrong: sum(|counts| counts.wrong),
        evictions: CacheClient::connect_to(server)?.statistic("evictions")?,
        phases,
    };
    write(output, &measured)?;
    ensure!(measured.wrong == 0, "{} values are wrong", measured.wrong);
    Ok(())
}

fn write(output: &Path, what: &impl Serialize) -> Result<()> {
    let file = File::create(output).with_context(|| output.display().to_string())?;
    Ok(serde_json::to_writer(file, what)?)
}

/// Seconds since 1970. The study uses them to match its own samples with the phases.
fn unix_s() -> Result<f64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64())
}
