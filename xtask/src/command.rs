//! Starting programs as a shell would.

use std::env;
use std::ffi::OsStr;
use std::process::Command;

/// A command without the names that `cargo run` puts in the environment of what it runs: crates whose build
/// depends on them (ring's does), and all that depend on these, would be built once more.
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

/// The cargo that runs this.
pub fn cargo() -> Command {
    command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
