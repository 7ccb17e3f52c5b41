//! Builds and starts other programs of the workspace. They are not linked into this one, so that the checks build in
//! seconds.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use anyhow::{Context, ensure};
use cargo_metadata::MetadataCommand;

use crate::command;

/// The programs that the Makefile builds together as `PROGRAMS`. The benchmarks start some of them.
pub const PROGRAMS: [&str; 6] = [
    "spillway",
    "spillway-preload",
    "spillwayd",
    "spillway-load",
    "spillway-valkey",
    "spillway-python",
];

/// Builds all programs of `package` together with the packages `beside`, then executes the program with the package's
/// name.
///
/// # Errors
/// The build fails, or the program does not start.
pub fn run(
    package: &str,
    beside: &[&str],
    arguments: impl IntoIterator<Item = OsString>,
) -> anyhow::Result<()> {
    let mut build = command::cargo();
    build.args(["build", "--quiet", "--release", "--package", package]);
    build.args(beside.iter().flat_map(|it| ["--package", it]));
    let status = build.status().context("can't start cargo")?;
    ensure!(status.success(), "the build of {package} failed");
    let target = MetadataCommand::new().no_deps().exec()?.target_directory;
    let program = target.join("release").join(package);
    let error = command::command(&program).args(arguments).exec();
    Err(error).with_context(|| format!("can't start {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_makefile_builds_the_same_programs() {
        let makefile = std::fs::read_to_string(command::root().join("Makefile")).expect("Makefile");
        let joined = makefile.replace("\\\n", " ");
        let line = joined.lines().find_map(|line| line.strip_prefix("PROGRAMS := "));
        let words = line.expect("PROGRAMS").split_whitespace();
        let packages: Vec<_> = words.filter(|word| *word != "--package").collect();
        assert_eq!(packages, PROGRAMS);
    }
}
