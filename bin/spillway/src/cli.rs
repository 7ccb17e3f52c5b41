//! The command line, and the dispatch of its commands.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::cost::{self, Cost};
use crate::daemon::{
    self, ClientCommand, Dashboard, DiskCommand, Lend, Policy, Pool, Reload, Serve, Stat, Target,
    Top, Vm,
};
use crate::doctor::{self, Doctor};
use crate::guest_memory::{self, GuestMemory, GuestMemoryPart};
use crate::options::Run;
use crate::refusal::Refusal;
use crate::sim::{self, Sim};
use crate::{manual, run, show};

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
    Reload(Reload),
    Stat(Stat),
    Top(Top),
    Dashboard(Dashboard),
    Client(ClientCommand),
    Pool(Pool),
    Disk(DiskCommand),
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
    /// Prints a completion script for a shell. The script asks this program, which asks the daemon for names.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages into a directory.
    Man {
        /// The directory, which is created if it is missing.
        dir: PathBuf,
    },
}

/// Reads the command line and runs the command.
///
/// # Errors
/// A [`Refusal`] with its line, or the command's error.
pub fn dispatch() -> anyhow::Result<ExitCode> {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) if error.use_stderr() => {
            let arguments = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
            return Err(one_line(&error, arguments).into());
        }
        Err(help) => {
            return match help.print() {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
                // A pipe that is closed early is the reader's choice.
                _ => Ok(ExitCode::SUCCESS),
            };
        }
    };
    match line.command {
        Command::Run(options) => run::run(&options),
        Command::Serve(options) => daemon::serve(&options),
        Command::Reload(options) => daemon::reload(&options),
        Command::Stat(options) => daemon::stat(&options),
        Command::Top(options) => daemon::top(&options),
        Command::Dashboard(options) => daemon::dashboard(&options),
        Command::Client(options) => daemon::client(&options),
        Command::Pool(options) => daemon::pool(&options),
        Command::Disk(options) => daemon::disk(&options),
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
            let script = manual::completions(shell)?;
            show::print(&script).map(|()| ExitCode::SUCCESS)
        }
        Command::Man { dir } => manual::pages(CommandLine::command(), &dir),
    }
}

/// The first paragraph of clap's message and its tips, on one line, with the command's --help.
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
    use spillway_test_support::commands;

    use super::*;
    use crate::options::Faults;

    fn refused(arguments: &[&str]) -> String {
        let error = CommandLine::try_parse_from(arguments).unwrap_err();
        one_line(&error, arguments[1..].iter().map(|&it| it.to_owned())).to_string()
    }

    #[test]
    fn the_definition_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_page_in_docs_is_the_help() {
        commands::check_reference(CommandLine::command());
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
