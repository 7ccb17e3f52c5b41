//! Every check, one after the other, each under a title. The first failure ends it.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use cargo_metadata::MetadataCommand;

use crate::layering;

/// Runs all checks from the workspace's root.
///
/// # Errors
/// Names the check that failed.
pub fn run() -> anyhow::Result<()> {
    env::set_current_dir(root())?;
    step("format", || cargo(&["fmt", "--all", "--check"]))?;
    step("layering", layering::check)?;
    step("lints", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
    })?;
    step("licences and sources of dependencies", deny)?;
    step("unit and property tests", || cargo(&["test", "--workspace", "--locked"]))?;
    step("operations that meet, under many schedules", || {
        let package = ["test", "--locked", "--package", "spillway-store", "--features", "shuttle"];
        cargo(&[&package[..], &["--test", "concurrency"]].concat())
    })?;
    step("documentation", || {
        let mut command = Command::new(cargo_path());
        command.args(["doc", "--workspace", "--no-deps", "--locked"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        execute(&mut command)
    })?;
    step("end-to-end tests", || {
        cargo(&["build", "--workspace", "--release", "--locked"])?;
        // Servers that some of the tests start.
        let servers = ["build", "--release", "--locked", "--examples"];
        cargo(&[&servers[..], &["-p", "spillway-nbd", "-p", "spillway-nvme-tcp"]].concat())?;
        let target = MetadataCommand::new().no_deps().exec()?.target_directory;
        let mut command = Command::new("lab/run-all");
        command.env("SPILLWAY", target.join("release/spillway"));
        // The lab's smaller sizes, unless the caller wants others.
        command.env("LAB_SIZE", env::var_os("LAB_SIZE").unwrap_or_else(|| "ci".into()));
        execute(&mut command)
    })
}

/// Runs one check under its title.
fn step(title: &str, check: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    println!("\n=== {title}");
    let start = Instant::now();
    check().with_context(|| format!("failed: {title}"))?;
    println!("=== {title}: {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Licences, sources and duplicate versions. The advisories lie in a repository that CI can't reach.
fn deny() -> anyhow::Result<()> {
    let there = Command::new(cargo_path()).args(["deny", "--version"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("NOT CHECKED: cargo-deny is missing; cargo install --locked cargo-deny");
        return Ok(());
    }
    cargo(&["deny", "--locked", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"])
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    execute(Command::new(cargo_path()).args(arguments))
}

fn execute(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("can't start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The cargo that runs this.
fn cargo_path() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The workspace's root: the folder above this crate's.
fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}
