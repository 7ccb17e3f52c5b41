//! The command line, and where each command goes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use spillway_pager::tree;

use crate::cost::{self, Cost};
use crate::daemon::{
    self, ClientCommand, Dashboard, Lend, Policy, Pool, Serve, Stat, Target, Top, Vm,
};
use crate::guest_memory::{self, GuestMemory, GuestMemoryPart};
use crate::refusal::Refusal;
use crate::register::{Register, parse_register};
use crate::show;
use crate::sim::{self, Sim};
use crate::units::{parse_delay, parse_size, parse_timeout};
use crate::{doctor, manual, run};

/// Gives a program more memory than it has: what does not fit spills into a page store.
#[derive(Debug, Parser)]
#[command(name = "spillway", version = env!("SPILLWAY_VERSION"), subcommand_required = true)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Run),
    Serve(Serve),
    Stat(Stat),
    Top(Top),
    Dashboard(Dashboard),
    Client(ClientCommand),
    Pool(Pool),
    Target(Target),
    Policy(Policy),
    Lend(Lend),
    Vm(Vm),
    GuestMemory(GuestMemory),
    #[command(hide = true)]
    GuestMemoryPart(GuestMemoryPart),
    Sim(Sim),
    Cost(Cost),
    Doctor(Doctor),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages into a directory.
    Man {
        /// The directory, which is made where it is missing.
        dir: PathBuf,
    },
}

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

/// Says what this kernel and user can and can't do, and how to mend it.
#[derive(Debug, Args)]
pub struct Doctor {
    /// How the checks are printed.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,

    /// Also checks this directory as a disk tier.
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
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

/// How `doctor` prints.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Output {
    /// A table for people.
    #[default]
    Table,
    /// One JSON object.
    Json,
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

/// Reads the command line and runs the command.
///
/// # Errors
/// A [`Refusal`] with its line, or what the command met.
pub fn dispatch() -> anyhow::Result<ExitCode> {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) if error.use_stderr() => {
            let arguments = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
            return Err(one_line(&error, arguments).into());
        }
        Err(help) => {
            help.print()?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    match line.command {
        Command::Run(options) => run::run(&options),
        Command::Serve(options) => daemon::serve(&options),
        Command::Stat(options) => daemon::stat(&options),
        Command::Top(options) => daemon::top(&options),
        Command::Dashboard(options) => daemon::dashboard(&options),
        Command::Client(options) => daemon::client(&options),
        Command::Pool(options) => daemon::pool(&options),
        Command::Target(options) => daemon::target(&options),
        Command::Policy(options) => daemon::policy(&options),
        Command::Lend(options) => daemon::lend(&options),
        Command::Vm(options) => daemon::vm(&options),
        Command::GuestMemory(options) => guest_memory::run(&options),
        Command::GuestMemoryPart(options) => guest_memory::part(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Cost(options) => cost::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Completions { shell } => {
            let script = manual::completions(CommandLine::command(), shell);
            show::print(&script).map(|()| ExitCode::SUCCESS)
        }
        Command::Man { dir } => manual::pages(CommandLine::command(), &dir),
    }
}

/// The first paragraph of clap's message and its tips, on one line. It names the help of the command that was meant.
fn one_line(error: &clap::Error, arguments: impl Iterator<Item = String>) -> Refusal {
    let command = command_of(arguments);
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return match command.as_str() {
            "" => Refusal::usage("no command given; try spillway run, or spillway --help"),
            command => Refusal::usage(format!("no command given; see spillway{command} --help")),
        };
    }
    let text = error.render().to_string();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut line = words(text.split("\n\n").next().unwrap_or_default());
    for tip in text.lines().map(str::trim).filter(|line| line.starts_with("tip: ")) {
        line = format!("{line}; {}", words(tip));
    }
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    Refusal::usage(format!("{line} (see spillway{command} --help)"))
}

/// The subcommands that a command line names, each after a space.
fn command_of(mut arguments: impl Iterator<Item = String>) -> String {
    let mut command = CommandLine::command();
    let mut names = String::new();
    while let Some(argument) = arguments.next().filter(|argument| argument != "--") {
        if argument.starts_with('-') {
            let takes_value = command.get_arguments().any(|known| {
                let long = known.get_long().is_some_and(|long| argument == format!("--{long}"));
                let short = known.get_short().is_some_and(|short| argument == format!("-{short}"));
                (long || short) && known.get_action().takes_values()
            });
            if takes_value {
                arguments.next();
            }
            continue;
        }
        let Some(next) = command.find_subcommand(&argument).cloned() else { break };
        names = format!("{names} {}", next.get_name());
        command = next;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: &[&str]) -> String {
        let error = CommandLine::try_parse_from(arguments).unwrap_err();
        one_line(&error, arguments[1..].iter().map(|&it| it.to_owned())).to_string()
    }

    #[test]
    fn the_definition_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn bad_input_is_one_line_that_names_the_option() {
        let line = refused(&["spillway", "run", "--local", "64X", "--", "true"]);
        assert!(line.contains("--local") && line.contains("K, M, G"), "{line}");
        let line = refused(&["spillway", "run", "--", "true"]);
        assert!(line.contains("--local <SIZE>") && !line.contains('\n'), "{line}");
        assert!(refused(&["spillway"]).contains("--help"));
        let line = refused(&["spillway", "run", "--local", "64M"]);
        assert!(line.contains("PROGRAM"), "{line}");
    }

    #[test]
    fn a_mistake_gets_a_tip_and_the_help_of_its_own_command() {
        for (line, tip, help) in [
            ("stta", "tip: a similar subcommand exists: 'stat'", "(see spillway --help)"),
            (
                "client add bob --taget 1G",
                "tip: a similar argument exists: '--target'",
                "(see spillway client add --help)",
            ),
            ("client add --output json bob --uid x", "'x'", "(see spillway client add --help)"),
            ("client", "no command given", "spillway client --help"),
            ("stat --output yaml", "possible values: table, json", "(see spillway stat --help)"),
        ] {
            let arguments: Vec<_> = ["spillway"].into_iter().chain(line.split(' ')).collect();
            let told = refused(&arguments);
            assert!(told.contains(tip) && told.contains(help) && !told.contains('\n'), "{told}");
        }
    }

    #[test]
    fn the_programs_own_options_are_not_ours() {
        let line = CommandLine::try_parse_from(
            "spillway run --local 1G --faults signal -- prog --local x --stats".split(' '),
        );
        let Command::Run(run) = line.unwrap().command else { panic!("not run") };
        assert_eq!(run.program, ["prog", "--local", "x", "--stats"]);
        assert_eq!(run.faults, Faults::Signal);
        assert_eq!(run.local, 1 << 30);
    }
}
