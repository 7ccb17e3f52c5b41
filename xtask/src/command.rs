//! Starts programs as from a shell, and finds the workspace's root.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

/// A command without the variables that `cargo run` adds to the environment. Crates whose build depends on them (such
/// as ring), and their dependents, would be built again.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The cargo that started this program.
pub fn cargo() -> Command {
    command(own_cargo())
}

/// The cargo that runs this, for at most `max`, since cargo itself has no limit for tests that hang.
pub fn limited_cargo(max: Duration) -> Command {
    limited(own_cargo(), max)
}

/// A command that ends with all its children after `max`, by a signal.
pub fn limited(program: impl AsRef<OsStr>, max: Duration) -> Command {
    let mut command = command("timeout");
    command.args(["--verbose", "--kill-after=10", &max.as_secs().to_string()]).arg(program);
    command
}

fn own_cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs the cargo that started this program.
///
/// # Errors
/// If it fails.
pub fn run_cargo(arguments: &[&str]) -> anyhow::Result<()> {
    execute(cargo().args(arguments))
}

/// Runs a command.
///
/// # Errors
/// If it can't be started, or fails.
pub fn execute(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("can't start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The workspace's root: the folder above this crate's.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}
