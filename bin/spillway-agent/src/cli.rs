//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use spillway_guests::call::{Call, SOCKET};

use crate::{client, high, hurry, mover, run, window};

/// Runs in a guest: tells the host how the guest's memory is, asks for more in time, and lets go of memory that the host takes
/// back.
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
    /// Asks the host for more memory, now. Ends with 0 if any was granted.
    Need(Amount),
    /// Tells the host that so much memory can be done without. Ends with 0 if it takes any.
    Give(Amount),
    /// Shows how the guest's memory is, and whether the host is there.
    Status(Reach),
    /// Puts back what an agent that was killed has set.
    PutBack {
        #[command(flatten)]
        state: StateFile,
    },
    /// Holds the pages of windows when the agent is killed.
    #[command(hide = true)]
    HoldWindows {
        /// Where their files lie.
        folder: PathBuf,
        /// What their names begin with.
        run: String,
    },
    /// Changes memory blocks as standard input says.
    #[command(hide = true)]
    MoveBlocks {
        /// Where /sys is.
        root: PathBuf,
    },
}

/// The agent's settings.
#[derive(Debug, Args)]
pub struct Run {
    /// The virtio-serial port to the host. Without udev it is found by its name.
    #[arg(long, value_name = "PATH", default_value = "/dev/virtio-ports/org.spillway.agent.0")]
    pub port: PathBuf,
    /// Where programs reach the agent.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,
    /// The virtio-serial port for windows, in which programs reach the host's store. Without udev it is found by its name.
    #[arg(long, value_name = "PATH", default_value = "/dev/virtio-ports/org.spillway.windows.0")]
    pub windows_port: PathBuf,
    /// Where a hugetlbfs of 2 MiB pages is mounted, for windows; `none` for no windows.
    #[arg(long, value_name = "PATH", default_value = "/dev/hugepages")]
    pub hugetlbfs: PathBuf,
    /// The control group that must not use up the reserve; `none` for no group.
    #[arg(long, value_name = "NAME", default_value = "user.slice")]
    pub cgroup: PathBuf,
    /// Leaves vm.overcommit_memory as it is. Else the agent changes 0 to 1: at 0 the kernel refuses a mapping
    /// that is larger than the guest is at the moment.
    #[arg(long)]
    pub keep_overcommit: bool,
    #[command(flatten)]
    pub state: StateFile,
    /// Where /proc, /sys and /dev are.
    #[arg(long, hide = true, default_value = "/")]
    pub root: PathBuf,
}

/// What outlives a kill.
#[derive(Debug, Args)]
pub struct StateFile {
    /// Where the former memory.high of the control group is kept.
    #[arg(long = "state", value_name = "PATH", default_value = "/run/spillway-agent/memory.high")]
    pub path: PathBuf,
}

#[derive(Debug, Args)]
struct Amount {
    /// How much: a count of bytes, or one with K, M, G or T behind it, in steps of 1024.
    #[arg(value_parser = parse_size)]
    size: u64,
    #[command(flatten)]
    reach: Reach,
}

/// How the running agent is reached, and how its answer is printed.
#[derive(Debug, Args)]
pub struct Reach {
    /// Where the agent listens.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,
    /// How to print the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For reading.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// Runs what the command line says.
///
/// # Errors
/// What can't be done, for a person to read.
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
        Ok(0) => Err("nothing: name a size such as 512M".into()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(format!("'{text}': {error}")),
    }
}
