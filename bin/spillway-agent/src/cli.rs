//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use spillway_guests::call::Call;

use crate::options::{Reach, Run, StateFile};
use crate::{client, high, hurry, mover, run, window};

/// Runs in a guest: reports the guest's memory use to the host, requests more in time, and releases memory that the
/// host takes back.
#[derive(Debug, Parser)]
#[command(name = "spillway-agent", version, subcommand_required = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the agent, until SIGTERM.
    Run(Run),
    /// Requests more memory from the host, now. Exits with 0 if any was granted.
    Need(Amount),
    /// Offers this much memory to the host. Exits with 0 if the host takes any.
    Give(Amount),
    /// Shows the guest's memory use, and whether the host is connected.
    Status(Reach),
    /// Restores the kernel settings that a killed agent changed.
    PutBack {
        #[command(flatten)]
        state: StateFile,
    },
    /// Holds the pages of windows if the agent is killed.
    #[command(hide = true)]
    HoldWindows {
        /// Directory of their files.
        folder: PathBuf,
        /// Prefix of their names.
        run: String,
    },
    /// Changes the memory blocks that standard input lists.
    #[command(hide = true)]
    MoveBlocks {
        /// Where /sys is.
        root: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Amount {
    /// The amount in bytes; suffixes K, M, G and T are powers of 1024.
    #[arg(value_parser = parse_size)]
    size: u64,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command of the command line.
///
/// # Errors
/// A message for the user.
pub fn dispatch() -> anyhow::Result<ExitCode> {
    match CommandLine::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Need(amount) => client::ask(&amount.reach, &Call::Need { bytes: amount.size }),
        Command::Give(amount) => client::ask(&amount.reach, &Call::Give { bytes: amount.size }),
        Command::Status(reach) => client::ask(&reach, &Call::Status),
        Command::PutBack { state } => {
            high::put_back(&state.path)?;
            high::put_back(&hurry::kept(&state.path))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::HoldWindows { folder, run } => Ok(window::hold(&folder, &run)),
        Command::MoveBlocks { root } => {
            mover::work(&root)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    match spillway_types::parse_size(text) {
        Ok(0) => Err("0 is not allowed: give a size such as 512M".into()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(format!("'{text}': {error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use spillway_test_support::commands;

    use super::*;

    #[test]
    fn the_page_in_docs_is_the_help() {
        commands::check_reference(CommandLine::command());
    }
}
