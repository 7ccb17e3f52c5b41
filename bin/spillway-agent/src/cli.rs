//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use spillway_guests::call::{Call, SOCKET};

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

/// The agent's settings.
#[derive(Debug, Args)]
pub struct Run {
    /// The virtio-serial port to the host. Without udev it is found by its name.
    #[arg(long, value_name = "PATH", default_value = "/dev/virtio-ports/org.spillway.agent.0")]
    pub port: PathBuf,
    /// The agent's socket for programs.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,
    /// The virtio-serial port for windows, in which programs reach the host's store. Without udev it is found by its name.
    #[arg(long, value_name = "PATH", default_value = "/dev/virtio-ports/org.spillway.windows.0")]
    pub windows_port: PathBuf,
    /// Mount point of a hugetlbfs with 2 MiB pages, for windows; `none` for no windows.
    #[arg(long, value_name = "PATH", default_value = "/dev/hugepages")]
    pub hugetlbfs: PathBuf,
    /// The control group that must not use up the reserve, or `none`.
    #[arg(long, value_name = "NAME", default_value = "user.slice")]
    pub cgroup: PathBuf,
    /// Leaves vm.overcommit_memory as it is. Otherwise the agent changes 0 to 1, because at 0 the kernel
    /// refuses a mapping that is larger than the guest's present memory.
    #[arg(long)]
    pub keep_overcommit: bool,
    #[command(flatten)]
    pub state: StateFile,
    /// Where /proc, /sys and /dev are.
    #[arg(long, hide = true, default_value = "/")]
    pub root: PathBuf,
}

/// State that survives a kill.
#[derive(Debug, Args)]
pub struct StateFile {
    /// File with the former memory.high of the control group.
    #[arg(long = "state", value_name = "PATH", default_value = "/run/spillway-agent/memory.high")]
    pub path: PathBuf,
}

#[derive(Debug, Args)]
struct Amount {
    /// The amount in bytes; suffixes K, M, G and T are powers of 1024.
    #[arg(value_parser = parse_size)]
    size: u64,
    #[command(flatten)]
    reach: Reach,
}

/// Options of the commands that query the running agent.
#[derive(Debug, Args)]
pub struct Reach {
    /// The agent's socket.
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
