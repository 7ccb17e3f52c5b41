//! fio with its nbd engine.

use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::BLOCK;
use crate::{by_size, go_on};

/// Measured time of a run, in fio's notation.
const RUN: &str = "1s";
const RUN_CI: &str = "100ms";

/// The kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
}

impl Way {
    /// The name in the rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Requests per second.
    pub rate: f64,
    /// Median time of a request, µs.
    pub median_us: f64,
}

/// Writes the whole device once.
pub fn fill(uri: &str) -> anyhow::Result<()> {
    fio(uri, &["--rw=write", "--bs=128k", "--iodepth=8"]).map(drop)
}

/// Runs random requests of one kind.
pub fn run(uri: &str, way: Way, depth: u32) -> anyhow::Result<Measured> {
    let (rw, bs) = (format!("--rw=rand{}", way.name()), format!("--bs={BLOCK}"));
    let (depth, time) =
        (format!("--iodepth={depth}"), format!("--runtime={}", by_size(RUN, RUN_CI)));
    let job = fio(uri, &[&rw, &bs, &depth, "--time_based", &time, "--norandommap"])?;
    let side = if way == Way::Read { job.read } else { job.write };
    let median_ns = *side.clat_ns.percentile.get("50.000000").context("fio gave no median")?;
    Ok(Measured { rate: side.iops, median_us: median_ns / 1e3 })
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Side,
    write: Side,
}

#[derive(Deserialize)]
struct Side {
    iops: f64,
    clat_ns: Latencies,
}

#[derive(Deserialize)]
struct Latencies {
    #[serde(default)]
    percentile: std::collections::HashMap<String, f64>,
}

fn fio(uri: &str, options: &[&str]) -> anyhow::Result<Job> {
    let output = Command::new("fio")
        .args(["--name=blocks", "--ioengine=nbd", "--output-format=json", "--thread"])
        .arg(format!("--uri={uri}"))
        .args(options)
        .output()
        .context("fio: run lab/setup bench")?;
    go_on()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio: {}: {}", output.status, errors.trim());
    // Messages may precede the JSON.
    let text = String::from_utf8_lossy(&output.stdout);
    let start = text.find('{').with_context(|| format!("fio said: {text}"))?;
    let output: Output = serde_json::from_str(&text[start..]).context("fio's output")?;
    output.jobs.into_iter().next().context("fio ran no job")
}
