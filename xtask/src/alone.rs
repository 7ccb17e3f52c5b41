//! Checks each package that users build alone.
//!
//! A build of the whole workspace gives a crate all features that any other crate requests of it or of a common
//! dependency. So it does not show that a feature is missing.

use std::iter;

use anyhow::ensure;
use cargo_metadata::{MetadataCommand, Package, TargetKind};

use crate::command::run_cargo;

/// The library that external Rust programs link.
const CLIENT: &str = "spillway-client";

/// Type-checks each program, each library with a C interface and [`CLIENT`], without features and with each one of
/// them. Every other crate but lab/test-support is part of one of these. Their tests are left out: their dependencies
/// could ask for a feature that the crate itself does not ask for.
///
/// # Errors
/// Names the commands that failed.
pub fn check() -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let packages: Vec<_> =
        metadata.workspace_packages().into_iter().filter(|it| is_built_alone(it)).collect();
    let commands: Vec<_> = packages.iter().flat_map(|it| commands(it)).collect();
    let fails = |arguments: &&Vec<&str>| run_cargo(arguments).is_err();
    let failed: Vec<_> = commands.iter().filter(fails).map(|it| it.join(" ")).collect();
    ensure!(failed.is_empty(), "cargo {}", failed.join("\ncargo "));
    println!("{} packages build alone, in {} ways", packages.len(), commands.len());
    Ok(())
}

/// Whether the package is a program, a library for C or [`CLIENT`].
fn is_built_alone(package: &Package) -> bool {
    let programs = [TargetKind::Bin, TargetKind::CDyLib];
    let has_program =
        package.targets.iter().flat_map(|it| &it.kind).any(|it| programs.contains(it));
    has_program || package.name == CLIENT
}

/// The arguments of cargo for a crate, in each way.
fn commands(package: &Package) -> Vec<Vec<&str>> {
    let check =
        vec!["check", "--quiet", "--locked", "--package", &package.name, "--no-default-features"];
    let features = package.features.keys().map(|feature| vec!["--features", feature.as_str()]);
    let ways = iter::once(Vec::new()).chain(features);
    ways.map(|way| [check.clone(), way].concat()).collect()
}
