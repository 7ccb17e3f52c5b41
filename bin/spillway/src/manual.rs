//! Completions and manual pages, both made from the command line's own definition.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::daemon::show;

/// Prints the completion script for `shell`.
///
/// # Errors
/// Standard output can't be written.
pub fn completions(
    mut command: clap::Command,
    shell: clap_complete::Shell,
) -> anyhow::Result<ExitCode> {
    // The generator panics where its output fails; a pipe that closes early is no reason for that.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "spillway", &mut script);
    show::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `spillway.1` and a page for each command into `dir`, which is made where it is missing.
///
/// # Errors
/// The directory can't be made or written.
pub fn pages(command: clap::Command, dir: &Path) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(dir).with_context(|| format!("can't make {}", dir.display()))?;
    clap_mangen::generate_to(command, dir)
        .with_context(|| format!("can't write manual pages into {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
