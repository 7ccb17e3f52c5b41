//! Loads a memcached with verifiable values, and measures its answers.
//!
//! `spillway-load run` fills a server, sends a skewed mix of requests, then reads every value once more. It compares
//! each value byte by byte with the last written one. `spillway-load table` prints two or three runs side by side.
//!
//! `spillway-load study`, `replay` and `curve` are the load of the memcached study (lab/blade-study): a cache of web
//! pages with the sizes and the popularity in the memory-blade paper.

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

/// Loads a memcached with verified values.
#[derive(Debug, Parser)]
enum Command {
    /// Fills a server, sends requests, and checks every value. Writes its measurements as JSON.
    Run {
        /// The server's Unix socket.
        #[arg(long)]
        socket: PathBuf,
        /// Size of all values, MiB.
        #[arg(long, default_value_t = 512)]
        values_mib: u64,
        /// How long to send requests, seconds.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
        /// Connections, each with its own thread and keys.
        #[arg(long, default_value_t = 4)]
        connections: usize,
        /// Prefix of the progress bar.
        #[arg(long, default_value = "memcached")]
        name: String,
        /// The file for the measurements.
        #[arg(long)]
        output: PathBuf,
    },
    /// Prints the limit, bytes, of a control group with the local memory of a paged run.
    Limit {
        /// Measurements of the paged server.
        paged: PathBuf,
        /// Statistics of the paged run.
        stats: PathBuf,
    },
    /// Prints two or three runs side by side.
    Table {
        /// Measurements of the server with all its memory.
        plain: PathBuf,
        /// Measurements of the paged server.
        paged: PathBuf,
        /// Statistics of the paged run.
        stats: PathBuf,
        /// Measurements of the server with swap on zram.
        #[arg(requires = "group")]
        zram: Option<PathBuf>,
        /// The figures of its control group.
        group: Option<PathBuf>,
    },
    /// Sends requests to a cache of web pages, in a closed loop and an open loop. Writes its measurements as JSON.
    Study(study::Study),
    /// Replays the whole trace into an empty cache. Writes the hit fraction as JSON.
    Replay(study::Replay),
    /// Computes the trace's hit fraction over the capacity of an LRU list. Writes JSON.
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
        Command::Limit { paged, stats } => table::print_limit(&paged, &stats),
        Command::Table { plain, paged, stats, zram, group } => {
            let zram = zram.as_deref().zip(group.as_deref());
            table::print(&plain, &paged, &stats, zram)
        }
        Command::Study(study) => study.run(),
        Command::Replay(replay) => replay.run(),
        Command::Curve(curve) => curve.run(),
    }
}
