//! The benchmarks, each side by side with what it is measured against.
//!
//! The sides of a comparison take turns within one run, several rounds of it, and a figure is the
//! median of its rounds: what slows the machine down slows both sides. `BENCH_ROUNDS` sets how
//! many rounds (default 5); `BENCH_ONLY` keeps the cells whose name contains it.

mod blocks;
mod fanout;
mod metadata;
mod pager;
mod policy;
mod replacement;
mod ring;
mod rows;
mod sides;
mod spec;
mod store;
mod zram;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::{env, path::PathBuf};

use anyhow::{Context, ensure};

/// Set by SIGINT and SIGTERM. What was changed on the machine is then put back before the end.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Runs the benchmark `name`; prints a table, or one JSON row a line when `json` is set.
///
/// # Errors
/// An unknown name, or what the benchmark itself met.
pub fn run(name: &str, json: bool) -> anyhow::Result<()> {
    ensure!(!cfg!(debug_assertions), "a debug build measures nothing: cargo xtask bench {name}");
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, INTERRUPTED.clone())?;
    }
    let report = match name {
        "store" => store::run()?,
        "pager" => pager::run()?,
        "replacement" => replacement::run()?,
        "ring" => ring::run()?,
        "blocks" => blocks::run()?,
        "fanout" => fanout::run()?,
        "policy" => policy::run()?,
        _ => {
            anyhow::bail!(
                "no benchmark is called {name}: store, pager, replacement, ring, blocks, fanout, policy"
            )
        }
    };
    report.print(json)?;
    ensure!(report.failures.is_empty(), "{} runs failed, see above", report.failures.len());
    Ok(())
}

/// Fails when the user asked to stop.
fn go_on() -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// How many rounds to take medians of.
fn rounds() -> anyhow::Result<usize> {
    match env::var("BENCH_ROUNDS") {
        Ok(rounds) => rounds.parse().context("BENCH_ROUNDS is not a number"),
        Err(_) => Ok(5),
    }
}

/// Whether `BENCH_ONLY` leaves the cell `name` in.
fn wanted(name: &str) -> bool {
    env::var("BENCH_ONLY").map_or(true, |only| name.contains(&only))
}

/// The folder that this program was built into; what it starts lies beside it.
fn built() -> anyhow::Result<PathBuf> {
    let own = env::current_exe()?;
    Ok(own.parent().context("a program lies in a folder")?.to_owned())
}

/// Builds, in the folder that this program lies in, the programs that it starts.
fn build(packages: &[&str]) -> anyhow::Result<()> {
    let folder = built()?;
    let target = folder.parent().context("target/release lies in target")?;
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .arg("--target-dir")
        .arg(target)
        .status()
        .context("cargo")?;
    ensure!(status.success(), "the build failed");
    Ok(())
}
