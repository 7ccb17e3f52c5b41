//! Completions and manual pages, both made from the command line's own definition.

mod pages;
mod sections;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap_complete::env::Shells;

/// Set while a shell's completion script asks this program.
pub const VARIABLE: &str = "SPILLWAY_COMPLETE";

/// The completion script for `shell`.
///
/// # Errors
/// The shell is none that completes.
pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<String> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let completer = shells.completer(&name).with_context(|| format!("no completion in {name}"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "spillway", "spillway", "spillway", &mut script)?;
    let mut script = String::from_utf8(script)?;
    if shell == clap_complete::Shell::Zsh {
        // zsh runs the file as the function `_spillway` when it first completes.
        script += "[ \"$funcstack[1]\" != _spillway ] || _clap_dynamic_completer_spillway \"$@\"\n";
    }
    Ok(script)
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
