//! Loads a memcached with values that it can check, and measures how it answers.
//!
//! `spillway-load run` fills a server, asks it with a skewed mix of requests, then reads every
//! value once more; each value read is compared byte by byte with what was last written.
//! `spillway-load table` lays two such runs beside each other.
//!
//! `spillway-load study`, `replay` and `curve` are the load of the memcached study (lab/blade-study):
//! a cache of web pages with the sizes and the popularity of the memory-blade paper.

#![forbid(unsafe_code)]

mod client;
mod memory;
mod study;
mod table;
mod values;
mod work;

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Loads a memcached with checked values.
#[derive(Debug, Parser)]
enum Command {
    /// Fills a server, asks it, checks every value; prints what it measured as JSON.
    Run {
        /// The server's Unix socket.
        #[arg(long)]
        socket: PathBuf,
        /// Bytes of values in all, MiB.
        #[arg(long, default_value_t = 512)]
        values_mib: u64,
        /// How long to ask, seconds.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
        /// Connections, each with a thread and keys of its own.
        #[arg(long, default_value_t = 4)]
        connections: usize,
        /// Shown before the progress bar.
        #[arg(long, default_value = "memcached")]
        name: String,
        /// Where the measurements go.
        #[arg(long)]
        output: PathBuf,
    },
    /// Prints two runs beside each other.
    Table {
        /// Measurements of the server with all its memory.
        plain: PathBuf,
        /// Measurements of the paged server.
        paged: PathBuf,
        /// Statistics of the paged run.
        stats: PathBuf,
    },
    /// Asks a cache of web pages, closed loop and open loop; prints what it measured as JSON.
    Study(study::Study),
    /// Replays the whole trace into an empty cache; prints the hit fraction as JSON.
    Replay(study::Replay),
    /// Computes the hit fraction of the trace over capacities, as an LRU list has it, as JSON.
    Curve(study::Curve),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Run { socket, values_mib, seconds, connections, name, output } => {
            let corpus = values::Corpus::load()?;
            let values = values::Values::new(&corpus, values_mib << 20, connections);
            let load = work::Load { socket: &socket, values, name: &name };
            let measured = load.run(Duration::from_secs(seconds))?;
            serde_json::to_writer_pretty(File::create(output)?, &measured)?;
            anyhow::ensure!(measured.wrong == 0, "{} values are wrong", measured.wrong);
            Ok(())
        }
        Command::Table { plain, paged, stats } => table::print(&plain, &paged, &stats),
        Command::Study(study) => study.run(),
        Command::Replay(replay) => replay.run(),
        Command::Curve(curve) => curve.run(),
    }
}
