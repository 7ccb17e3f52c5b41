//! The options of `spillway run`, and those that several commands take.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use spillway_pager::tree;

use crate::register::{Register, parse_register};
use crate::units::{parse_delay, parse_loss_timeout, parse_size, parse_timeout};

/// Runs a program in less memory than it needs.
///
/// Pages that the program does not use move to a store inside the same process, which compresses
/// them. The program's exit status, signals and standard streams stay its own.
///
/// SIZE is a number of bytes, optionally with a suffix K, M, G or T (powers of 1024).
#[derive(Debug, Args)]
pub struct Run {
    /// Most memory that the pages of the program and its children may take; at least 1M. Code,
    /// stacks and mapped files come on top and are reported separately.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub local: u64,

    /// Most memory that the store may take. Default: what the machine can give less --local. That
    /// is the least of MemAvailable, the cgroup's memory limit and the limit on address space
    /// (ulimit -v), which `spillway doctor` shows.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub store: Option<u64>,

    /// Directory for pages that do not fit in the store or on the blade. Without it they stay in
    /// the program's memory, above its budget.
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,

    /// Emulates a slower disk: each read and write of --disk takes this much longer, such as 150us.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_delay, requires = "disk")]
    pub disk_delay: Duration,

    #[command(flatten)]
    pub remote: Remote,

    /// Registers with a daemon of this host. The daemon shows the run, and may reduce its local memory below
    /// --local while others need memory (memory.programs in its configuration). auto: the user's own daemon, else
    /// the host's, if one runs; off; or the path of a daemon's programs.sock. See docs/policies.md.
    #[arg(long, value_name = "auto|off|PATH", default_value = "auto", value_parser = parse_register)]
    pub register: Register,

    /// Which page to evict when memory is needed.
    #[arg(long, value_enum, default_value_t)]
    pub replacement: Replacement,

    /// When to evict: inside the fault that needs the memory, or ahead of need. The statistics show the choice of
    /// auto.
    #[arg(long, value_enum, default_value_t)]
    pub eviction: Eviction,

    /// What answers faults: handlers beside the program, or the program's own threads in a SIGBUS
    /// handler. The latter is faster, but system calls on far pages fail with EFAULT.
    #[arg(long, value_enum, default_value_t)]
    pub faults: Faults,

    /// Emulates a link to the store: each transfer takes this long, one at a time, such as 4us.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_delay)]
    pub link_delay: Duration,

    /// Prefetch pages of sequential and strided walks.
    #[arg(long, value_enum, default_value_t)]
    pub prefetch: Switch,

    /// Compress the pages in the store. Switch this off only for measurements: the run then saves
    /// no memory in total.
    #[arg(long, value_enum, default_value_t)]
    pub compress: Switch,

    /// Writes statistics as JSON when the program has ended; - means standard output.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    /// Records each page that leaves, comes back or is freed, for `spillway sim --trace`. See docs/policies.md.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Shows one live line on standard error, and a summary at the end.
    #[arg(long)]
    pub progress: bool,

    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Memory elsewhere, for pages that do not fit in the store.
#[derive(Clone, Debug, Args)]
pub struct Remote {
    /// Memory of another process or host for pages that do not fit in the store: ring:PATH or
    /// nvme+tcp://HOST:PORT. The default of --store is then a quarter of --local, at least 8M. See
    /// docs/blades.md.
    #[arg(long, value_name = "URL")]
    pub blade: Option<String>,

    /// A second blade, or a directory, that gets a copy of every page and serves when the blade
    /// does not. Without it the pages on a blade that dies are lost: touching them is a SIGBUS
    /// after --blade-loss-timeout.
    #[arg(long, value_name = "URL|DIR", requires = "blade")]
    pub mirror: Option<String>,

    /// How long a page waits for an answer from the blade, and then from the mirror. After that,
    /// pages leave to the mirror or the disk until the blade answers again.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_timeout, requires = "blade")]
    pub blade_timeout: Duration,

    /// How long the program waits for pages that nobody else has while the blade, or the mirror,
    /// does not answer. After that, touching one is a SIGBUS.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_loss_timeout, requires = "blade")]
    pub blade_loss_timeout: Duration,

    /// Sends pages in the clear. Without this option they are encrypted with a key of this run.
    #[arg(long, requires = "blade")]
    pub no_encrypt: bool,

    /// Encrypts pages with the key in FILE, so that equal pages of all runs with this key share
    /// memory on the blade. With --no-encrypt, the key only separates such runs from others. The
    /// file contains 64 hexadecimal digits: openssl rand -hex 32. docs/blades.md says what the
    /// blade learns.
    #[arg(long, value_name = "FILE", requires = "blade")]
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

/// Which page to evict.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Replacement {
    /// Round-robin or clock, by the measured times of a fetch and of a rescue.
    #[default]
    Auto,
    /// The next resident page in address order.
    RoundRobin,
    /// Second chance, with a victim pool in place of accessed bits.
    Clock,
}

/// When to evict.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Eviction {
    /// The faster of the two for this program, found by trials while it runs.
    #[default]
    Auto,
    /// Inside the fault that needs its frame.
    OnDemand,
    /// Ahead of need, by a separate task.
    PreEvict,
}

/// What handles a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Faults {
    /// A handler for each core; system calls may touch far pages.
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

/// The name of a choice on the command line.
pub fn name_of(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pager's choice of a name on the command line.
    fn chosen<T: ValueEnum, U: From<T>>(name: &str) -> U {
        T::from_str(name, false).expect("a name that --help lists").into()
    }

    #[test]
    fn each_name_chooses_what_it_says() {
        use tree::{Eviction as E, Faults as F, Replacement as R};
        assert_eq!(chosen::<Eviction, E>("auto"), E::Auto);
        assert_eq!(chosen::<Eviction, E>("on-demand"), E::OnDemand);
        assert_eq!(chosen::<Eviction, E>("pre-evict"), E::PreEvict);
        assert_eq!(chosen::<Replacement, R>("auto"), R::Auto);
        assert_eq!(chosen::<Replacement, R>("round-robin"), R::RoundRobin);
        assert_eq!(chosen::<Replacement, R>("clock"), R::Clock);
        assert_eq!(chosen::<Faults, F>("thread"), F::Thread);
        assert_eq!(chosen::<Faults, F>("signal"), F::Signal);
    }
}
