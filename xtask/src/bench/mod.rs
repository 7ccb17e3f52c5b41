//! The benchmarks, each side by side with what it is measured against.
//!
//! The sides of a comparison take turns within one run, several rounds of it, and a figure is the
//! median of its rounds: what slows the machine down slows both sides. `BENCH_ROUNDS` sets how
//! many rounds (default 5); `BENCH_ONLY` keeps the cells whose name contains it; `BENCH_SIZE=ci`
//! makes everything small, to see that it runs.

mod blocks;
mod cells;
mod fanout;
mod kvcache;
mod metadata;
mod pager;
mod policy;
mod programs;
mod replacement;
mod resize;
mod resp;
mod ring;
mod rows;
mod sides;
mod spec;
mod store;
mod window;
mod zram;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::{env, path::PathBuf};

use anyhow::{Context, ensure};

use crate::{ci::root, command};
use cells::{by_size, rounds, wanted};
use rows::Report;

/// A benchmark: its name and what runs it.
type Bench = (&'static str, fn() -> anyhow::Result<Report>);

/// All of them.
const ALL: [Bench; 12] = [
    ("store", store::run),
    ("pager", pager::run),
    ("programs", programs::run),
    ("replacement", replacement::run),
    ("ring", ring::run),
    ("blocks", blocks::run),
    ("fanout", fanout::run),
    ("policy", policy::run),
    ("resize", resize::run),
    ("kvcache", kvcache::run),
    ("resp", resp::run),
    ("window", window::run),
];

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
    let bench = ALL.iter().find(|bench| bench.0 == name);
    let (_, measure) = bench.with_context(|| {
        format!("no benchmark is called {name}: {}", names().collect::<Vec<_>>().join(", "))
    })?;
    let report = measure()?;
    cells::some_chosen(name)?;
    report.print(json)?;
    ensure!(report.failures.is_empty(), "{} runs failed, see above", report.failures.len());
    Ok(())
}

/// The names of all benchmarks.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|bench| bench.0)
}

/// Fails when the user asked to stop.
fn go_on() -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// The folder that this program was built into; what it starts lies beside it.
fn built() -> anyhow::Result<PathBuf> {
    let own = env::current_exe()?;
    Ok(own.parent().context("a program lies in a folder")?.to_owned())
}

/// Builds this package's other programs, which benchmarks start.
fn build_own() -> anyhow::Result<()> {
    let mut cargo = command::cargo();
    cargo.args(["build", "--quiet", "--release", "--package", "xtask"]);
    build(cargo)
}

/// Builds what `make build` does, all together as that does it: a build of some of it would share little with that.
fn build_programs() -> anyhow::Result<()> {
    let mut make = command::command("make");
    make.args(["--silent", "build"]).current_dir(root());
    build(make)
}

/// Runs a build whose results lie in the folder that this program lies in.
fn build(mut command: Command) -> anyhow::Result<()> {
    let folder = built()?;
    let target = folder.parent().context("target/release lies in target")?;
    let status = command.env("CARGO_TARGET_DIR", target).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("can't start {command:?}"))?;
    ensure!(status.success(), "the build failed");
    Ok(())
}
