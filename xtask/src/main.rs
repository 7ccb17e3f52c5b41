//! The developer's commands: ci, layering check, bench.

mod bench;

use clap::{Parser, Subcommand};

/// The developer's commands.
#[derive(Parser)]
#[command(name = "xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures one thing beside what it is compared with.
    Bench {
        /// Which benchmark.
        name: String,
        /// Prints one JSON row a line instead of a table.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Bench { name, json } => bench::run(&name, json),
    }
}
