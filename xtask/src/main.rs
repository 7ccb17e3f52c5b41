//! The developer's commands: ci, checks of layering and pages, bench, simulation.

mod alone;
mod bench;
mod ci;
mod command;
mod layering;
mod pages;
mod sim;

use std::process::ExitCode;

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
    /// Runs every check that CI runs.
    Ci,
    /// Checks that no crate knows one that it must not know.
    Layering,
    /// Checks that the pages use no retired word and no line that is too wide.
    Pages,
    /// Type-checks each crate by itself, without features and with each one.
    Alone,
    /// Measures one thing beside what it is compared with.
    Bench {
        /// Which benchmark.
        name: String,
        /// Prints one JSON row a line instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Runs state machines on virtual hosts, over many seeds.
    Sim {
        #[command(subcommand)]
        simulation: sim::Simulation,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Ci => ci::run(),
        Command::Layering => layering::check(),
        Command::Pages => pages::check(),
        Command::Alone => alone::check(),
        Command::Bench { name, json } => bench::run(&name, json),
        Command::Sim { simulation } => sim::run(&simulation),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
