//! The programs of SmarTmem's scenarios, with data that they make themselves.
//!
//! The paper ran CloudSuite's graph analytics and in-memory analytics. Here they are PageRank over a power-law
//! graph, and alternating least squares over ratings as MovieLens has them. (usemem is lab/tools/usemem.c.) Each says as lines of JSON what it has done and when; what it computed is a checksum, which is
//! the same however the program's memory is kept.

#![forbid(unsafe_code)]

mod als;
mod pagerank;

use std::io::Write;

use clap::Parser;
use rand::RngExt;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

/// Runs one of the scenarios' programs.
#[derive(Debug, Parser)]
enum Program {
    /// PageRank over a generated power-law graph.
    Pagerank {
        /// Memory of the graph, MiB.
        #[arg(long)]
        mib: usize,
        /// Iterations.
        #[arg(long, default_value_t = 8)]
        iterations: usize,
    },
    /// Alternating least squares over generated ratings.
    Als {
        /// Memory of the ratings, MiB.
        #[arg(long)]
        mib: usize,
        /// Iterations.
        #[arg(long, default_value_t = 4)]
        iterations: usize,
        /// How often all is done, with a pause between.
        #[arg(long, default_value_t = 1)]
        runs: usize,
        /// The pause, milliseconds.
        #[arg(long, default_value_t = 0)]
        pause_ms: u64,
    },
}

fn main() -> anyhow::Result<()> {
    match Program::parse() {
        Program::Pagerank { mib, iterations } => pagerank::run(mib << 20, iterations),
        Program::Als { mib, iterations, runs, pause_ms } => {
            als::run(mib << 20, iterations, runs, pause_ms)
        }
    }
}

/// A number of mean 1, seldom large: Pareto's law with exponent 2.
fn heavy_tailed(random: &mut SmallRng) -> f64 {
    0.5 / (1.0 - random.random::<f64>()).sqrt()
}

/// Says that something is done.
///
/// # Errors
/// Nobody reads any more.
fn say(event: &str, seconds: f64, result: Value) -> anyhow::Result<()> {
    let line = json!({ "event": event, "seconds": seconds, "result": result });
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
