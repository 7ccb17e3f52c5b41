//! Programs of the workspace that this one starts: it does not link what they need, so that checks build in seconds.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use anyhow::{Context, ensure};
use cargo_metadata::MetadataCommand;

use crate::command;

/// Builds all programs of `package` and becomes the one of its name.
///
/// # Errors
/// The build fails, or the program does not start.
pub fn run(package: &str, arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<()> {
    let build = ["build", "--quiet", "--release", "--package", package];
    let status = command::cargo().args(build).status().context("can't start cargo")?;
    ensure!(status.success(), "the build of {package} failed");
    let target = MetadataCommand::new().no_deps().exec()?.target_directory;
    let program = target.join("release").join(package);
    let error = command::command(&program).args(arguments).exec();
    Err(error).with_context(|| format!("can't start {program}"))
}
