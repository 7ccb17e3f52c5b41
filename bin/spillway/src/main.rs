//! The spillway command.

mod blade;
mod cli;
mod cost;
mod daemon;
mod doctor;
mod guest_memory;
mod manual;
mod notices;
mod options;
mod outside;
mod program;
mod progress;
mod record;
mod refusal;
mod register;
mod run;
mod sample;
mod shared_tree;
mod show;
mod sim;
mod slots;
mod stats;
mod supervise;
mod units;

use std::process::ExitCode;

use clap::CommandFactory;

fn main() -> ExitCode {
    // Ends here when a shell's completion script asks.
    clap_complete::CompleteEnv::with_factory(cli::CommandLine::command)
        .var(manual::VARIABLE)
        .complete();
    let json = refusal::asks_for_json(std::env::args_os().skip(1));
    cli::dispatch().unwrap_or_else(|error| refusal::report(&error, json))
}
