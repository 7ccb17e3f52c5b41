//! Checks each crate by itself, as whoever takes that one alone builds it.
//!
//! A build of the whole workspace gives a crate every feature that any other crate asks of it, and of what both
//! depend on, so it does not show that one is missing.

use std::iter;

use anyhow::ensure;
use cargo_metadata::{MetadataCommand, Package};

use crate::command::run_cargo;

/// Type-checks each crate without features and with each one of them. Its tests are left out: their
/// dependencies could ask for a feature that the crate itself does not ask for.
///
/// # Errors
/// Names the commands that failed.
pub fn check() -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let packages = metadata.workspace_packages();
    let commands: Vec<_> = packages.into_iter().flat_map(commands).collect();
    let fails = |arguments: &&Vec<&str>| run_cargo(arguments).is_err();
    let failed: Vec<_> = commands.iter().filter(fails).map(|it| it.join(" ")).collect();
    ensure!(failed.is_empty(), "cargo {}", failed.join("\ncargo "));
    println!(
        "{} crates build alone, in {} ways",
        metadata.workspace_packages().len(),
        commands.len()
    );
    Ok(())
}

/// The arguments of cargo for a crate, in each way.
fn commands(package: &Package) -> Vec<Vec<&str>> {
    let check =
        vec!["check", "--quiet", "--locked", "--package", &package.name, "--no-default-features"];
    let features = package.features.keys().map(|feature| vec!["--features", feature.as_str()]);
    let ways = iter::once(Vec::new()).chain(features);
    ways.map(|way| [check.clone(), way].concat()).collect()
}
