//! The agent's settings, and the options of the commands that ask the running agent.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spillway_guests::call::SOCKET;

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
    /// The user, by number, whose programs get windows in the guest's ivshmem device, if it has one. They can
    /// map all of the device's memory; windows of other users lie in guest memory.
    #[arg(long, value_name = "UID", default_value_t = 0)]
    pub ivshmem_uid: u32,
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
