//! `spillway doctor`: what this kernel and user support, and how to fix what is missing.

mod checks;
pub mod userfaultfd;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::show::{self, Output};

/// Shows what this kernel and user support, and how to fix what is missing.
#[derive(Debug, Args)]
pub struct Doctor {
    /// How the checks are printed.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,

    /// Also checks this directory as a disk tier.
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// `run` works, but not with every option.
    Limited,
    /// `run` does not work.
    Missing,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// The verdict.
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// What the user can do about it; empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mend: String,
}

impl Check {
    /// A passed check.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: CheckState::Ok, found: found.into(), mend: String::new() }
    }

    /// A check with a limitation; `mend` says how to remove it.
    pub fn limited(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, state: CheckState::Limited, found: found.into(), mend: mend.into() }
    }

    /// A failed check: `run` can't work until it is fixed.
    pub fn missing(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, state: CheckState::Missing, found: found.into(), mend: mend.into() }
    }
}

#[derive(Serialize)]
struct Report {
    run_works: bool,
    checks: Vec<Check>,
}

/// Prints the checks; exit code 0 when `run` works, else 1.
///
/// # Errors
/// Standard output can't be written.
pub fn run(options: &Doctor) -> anyhow::Result<ExitCode> {
    let checks = checks::all(options.disk.as_deref());
    let run_works = checks.iter().all(|check| check.state != CheckState::Missing);
    match options.output {
        Output::Table => show::print(&table(&checks, run_works))?,
        Output::Json => show::json(&Report { run_works, checks })?,
    }
    Ok(if run_works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(checks: &[Check], run_works: bool) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let state = match check.state {
            CheckState::Ok => "ok",
            CheckState::Limited => "limited",
            CheckState::Missing => "missing",
        };
        text.push_str(&format!("{:width$}  {state:7}  {}\n", check.name, check.found));
        if !check.mend.is_empty() {
            text.push_str(&format!("{:width$}  {:7}  -> {}\n", "", "", check.mend));
        }
    }
    text.push_str(if run_works {
        "\nspillway run works here.\n"
    } else {
        "\nspillway run does not work here yet: fix what is missing.\n"
    });
    text
}
