//! Completions and manual pages, both made from the command line's own definition.

mod pages;
mod sections;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

/// The completion script for `shell`.
pub fn completions(mut command: clap::Command, shell: clap_complete::Shell) -> String {
    // The generator panics if its output fails.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "spillway", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes `spillway.1` and a page for each command to `dir`, which is created if it is missing.
///
/// # Errors
/// The directory can't be made or written.
pub fn pages(command: clap::Command, dir: &Path) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(dir).with_context(|| format!("can't create {}", dir.display()))?;
    for (name, text) in pages::render(command)? {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
