//! The options of `spillway run`, and those that several commands take.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use spillway_pager::tree;

use crate::register::{Register, parse_register};
use crate::units::{parse_delay, parse_size, parse_timeout};

/// Runs a program in less memory than it needs.
///
/// Pages that the program does not use leave its memory for a store inside the same process, where
/// they lie compressed. The program's exit status, signals and standard streams stay its own.
///
/// SIZE is a count of bytes, or one with K, M, G or T behind it, in steps of 1024.
#[derive(Debug, Args)]
pub struct Run {
    /// Most memory that the pages of the program and its children may take; at least 1M. Code,
    /// stacks and mapped files come on top and are reported beside it.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub local: u64,

    /// Most memory that the store may take. Default: what the machine can give, that is the least
    /// of MemAvailable, the cgroup's memory limit and the limit on address space (ulimit -v), less
    /// --local. `spillway doctor` shows these.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub store: Option<u64>,

    /// Directory for the pages that store and blade do not take. Without it they stay in the
    /// program's memory, above its budget.
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,

    /// Emulates a slower disk: each read and write of --disk takes this much longer (150us).
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_delay, requires = "disk")]
    pub disk_delay: Duration,

    #[command(flatten)]
    pub remote: Remote,

    /// Registers with a daemon of this host, which shows the run and may tell it to hold less than --local while
    /// others need memory (memory.programs in its configuration): auto, the user's own, else the host's, when one
    /// runs; off; or its programs.sock. See docs/policies.md.
    #[arg(long, value_name = "auto|off|PATH", default_value = "auto", value_parser = parse_register)]
    pub register: Register,

    /// Which page leaves when memory is needed.
    #[arg(long, value_enum, default_value_t)]
    pub replacement: Replacement,

    /// When it leaves: inside the fault that needs the memory, or ahead of need. The statistics say which was chosen.
    #[arg(long, value_enum, default_value_t)]
    pub eviction: Eviction,

    /// Who brings a page back: a handler beside the program, or the program's own thread in a
    /// SIGBUS handler, which is faster but fails system calls on far pages with EFAULT.
    #[arg(long, value_enum, default_value_t)]
    pub faults: Faults,

    /// Emulates a link to the store: each transfer takes this long, one at a time (4us).
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_delay)]
    pub link_delay: Duration,

    /// Fetch pages ahead of sequential and strided walks.
    #[arg(long, value_enum, default_value_t)]
    pub prefetch: Switch,

    /// Compress the pages in the store. Off, the program takes no less memory in all: it is there
    /// for measurements.
    #[arg(long, value_enum, default_value_t)]
    pub compress: Switch,

    /// Writes statistics as JSON when the program has ended; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    /// Writes down each page that leaves, comes back or is freed, for `spillway sim --trace`. See docs/policies.md.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Shows one live line on standard error, and a summary at the end.
    #[arg(long)]
    pub progress: bool,

    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Memory elsewhere, for pages that do not fit into the store.
#[derive(Clone, Debug, Args)]
pub struct Remote {
    /// Memory of another process or host for the pages that the store does not take: ring:PATH or
    /// nvme+tcp://HOST:PORT. The store is then a quarter of --local, at least 8M, if --store does
    /// not say otherwise. See docs/blades.md.
    #[arg(long, value_name = "URL")]
    pub blade: Option<String>,

    /// A second blade, or a directory, that gets all that the blade gets, and serves when the blade
    /// does not. Without it the pages on a blade that dies are gone: touching them is a SIGBUS.
    #[arg(long, value_name = "URL|DIR", requires = "blade")]
    pub mirror: Option<String>,

    /// How long a page waits for an answer of the blade, and then of the mirror (3s).
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_timeout, requires = "blade")]
    pub blade_timeout: Duration,

    /// Send pages in the clear. They are encrypted with a key of this run otherwise.
    #[arg(long, requires = "blade")]
    pub no_encrypt: bool,

    /// Encrypt pages with the key in FILE, so that equal pages of all runs with this key share memory
    /// on the blade. The file has 64 hexadecimal digits: openssl rand -hex 32. See docs/blades.md
    /// for what the blade learns.
    #[arg(long, value_name = "FILE", requires = "blade", conflicts_with = "no_encrypt")]
    pub share: Option<PathBuf>,
}

/// A switch on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    #[default]
    On,
    /// Off.
    Off,
}

/// Which page leaves.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Replacement {
    /// Round-robin or clock, by the measured times of a fetch and of a move back.
    #[default]
    Auto,
    /// A pointer over the resident pages, in the order of their addresses.
    RoundRobin,
    /// Second chance, with a victim pool in place of accessed bits.
    Clock,
}

/// When it leaves.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Eviction {
    /// Whichever of the two lets the program fault faster; tried in turns while it runs.
    #[default]
    Auto,
    /// Inside the fault that needs its frame.
    OnDemand,
    /// Ahead of need, by a task of its own.
    PreEvict,
}

/// Who handles a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Faults {
    /// A handler per core; system calls may touch far pages.
    #[default]
    Thread,
    /// The faulting thread itself.
    Signal,
}

impl From<Replacement> for tree::Replacement {
    fn from(value: Replacement) -> Self {
        match value {
            Replacement::Auto => Self::Auto,
            Replacement::RoundRobin => Self::RoundRobin,
            Replacement::Clock => Self::Clock,
        }
    }
}

impl From<Eviction> for tree::Eviction {
    fn from(value: Eviction) -> Self {
        match value {
            Eviction::Auto => Self::Auto,
            Eviction::OnDemand => Self::OnDemand,
            Eviction::PreEvict => Self::PreEvict,
        }
    }
}

impl From<Faults> for tree::Faults {
    fn from(value: Faults) -> Self {
        match value {
            Faults::Thread => Self::Thread,
            Faults::Signal => Self::Signal,
        }
    }
}

/// The name of a choice as the user writes it.
pub fn name_of(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
