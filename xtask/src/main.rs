//! The developer's commands: ci, checks of layering and pages, bench, simulation.

#![forbid(unsafe_code)]

mod alone;
mod ci;
mod circles;
mod command;
mod glossary;
mod layering;
mod log_lines;
mod names;
mod pages;
mod parallel;
mod programs;
mod unit_tests;
mod versions;

use std::ffi::OsString;
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
    /// Checks that no crate has a forbidden dependency, that no files of a crate depend on each other in a circle, and
    /// that no type has only a generic word as its name.
    Layering,
    /// Checks that the pages have no retired words and no lines that are too wide, and that the glossary explains the
    /// words of the names that users meet.
    Pages,
    /// Runs the unit and property tests, two executables at a time.
    UnitTests,
    /// Type-checks each program, each library for C and the Rust client by itself.
    Alone,
    /// Runs a benchmark, and prints each figure beside the one that it is compared with.
    Bench {
        /// The benchmark. Without it, the names of all are printed, one a line.
        name: Option<OsString>,
        /// Prints one JSON row a line instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Runs state machines on virtual hosts, over many seeds.
    #[command(disable_help_flag = true)]
    Sim {
        /// The simulation and its options: see `cargo xtask sim --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Ci => ci::run(),
        Command::Layering => {
            layering::check().and_then(|()| circles::check()).and_then(|()| names::check())
        }
        Command::Pages => {
            let checks = [pages::check, glossary::check, log_lines::check, versions::check];
            checks.into_iter().try_for_each(|check| check())
        }
        Command::UnitTests => unit_tests::run(),
        Command::Alone => alone::check(),
        Command::Bench { name, json } => {
            let flag = json.then(|| "--json".into());
            let arguments = name.into_iter().chain(flag);
            programs::run("spillway-bench", &programs::PROGRAMS, arguments)
        }
        Command::Sim { arguments } => programs::run("spillway-sim", &[], arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
