//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::config::{self, Config};

/// The commit from which this was built; empty if unknown.
pub const COMMIT: &str = env!("SPILLWAY_COMMIT");

/// The daemon: one page store for a host's processes, guests and neighbours.
#[derive(Clone, Debug, Parser)]
#[command(name = "spillwayd", version = env!("SPILLWAY_VERSION"))]
pub struct Arguments {
    /// Configuration file; docs/config.md lists the settings.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Overrides one setting of the file. Can be repeated.
    #[arg(long = "set", value_name = "SECTION.NAME=VALUE")]
    pub overrides: Vec<String>,

    /// Checks the configuration and exits.
    #[arg(long)]
    pub check: bool,

    /// Prints the reference of all settings and exits.
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "markdown"
    )]
    pub document: Option<Format>,
}

/// A format of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The page docs/config.md.
    Markdown,
    /// The manual page spillwayd.toml(5).
    Man,
}

impl Arguments {
    /// Reads the configuration that they name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(&self) -> Result<Config, config::Error> {
        config::read(self.config.as_deref(), &self.overrides)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use spillway_test_support::commands;

    use super::*;

    #[test]
    fn the_page_in_docs_is_the_help() {
        commands::check_reference(Arguments::command());
    }
}
