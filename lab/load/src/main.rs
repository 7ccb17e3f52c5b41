//! Loads a memcached with values that it can check, and measures how it answers.
//!
//! `spillway-load run` fills a server, asks it with a skewed mix of requests, then reads every
//! value once more; each value read is compared byte by byte with what was last written.
//! `spillway-load table` lays two such runs beside each other.

#![forbid(unsafe_code)]

mod client;
mod memory;
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
    }
}
