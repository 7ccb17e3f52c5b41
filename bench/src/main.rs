//! The benchmarks: each compares Spillway with a peer or a lower bound.
//!
//! The sides of a comparison alternate within a run of several rounds, and a figure is the median of its rounds. So
//! disturbances of the machine affect both sides. `BENCH_ROUNDS` sets the number of rounds (default 5). `BENCH_ONLY`
//! selects the cells whose names contain it. `BENCH_SIZE=ci` makes everything small, to check that it runs.

mod blocks;
mod cells;
mod disks;
mod fanout;
mod kvcache;
mod machine;
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
mod swap;
mod swap_file;
mod valkey;
mod valkey_guest;
mod window;
mod zram;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, ensure};
use clap::Parser;
use serde::de::DeserializeOwned;

use cells::{by_size, rounds, wanted};
use rows::Report;

/// Runs a benchmark, and prints each figure beside the one that it is compared with.
#[derive(Parser)]
struct Arguments {
    /// The benchmark. Without it, the names of all are printed, one a line.
    name: Option<String>,
    /// Prints one JSON row a line instead of a table.
    #[arg(long)]
    json: bool,
}

/// A benchmark: its name and its function.
type Bench = (&'static str, fn() -> anyhow::Result<Report>);

/// All benchmarks.
const ALL: [Bench; 16] = [
    ("store", store::run),
    ("pager", pager::run),
    ("swap", swap::run),
    ("programs", programs::run),
    ("replacement", replacement::run),
    ("ring", ring::run),
    ("blocks", blocks::run),
    ("disks", disks::run),
    ("fanout", fanout::run),
    ("policy", policy::run),
    ("resize", resize::run),
    ("kvcache", kvcache::run),
    ("resp", resp::run),
    ("valkey", valkey::run),
    ("valkey-guest", valkey_guest::run),
    ("window", window::run),
];

/// Set by SIGINT and SIGTERM. All changes to the machine are undone before the program ends.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

fn main() -> ExitCode {
    let Arguments { name, json } = Arguments::parse();
    let Some(name) = name else {
        ALL.iter().for_each(|bench| println!("{}", bench.0));
        return ExitCode::SUCCESS;
    };
    match run(&name, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, json: bool) -> anyhow::Result<()> {
    ensure!(!cfg!(debug_assertions), "a debug build measures nothing: cargo xtask bench {name}");
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, INTERRUPTED.clone())?;
    }
    let bench = ALL.iter().find(|bench| bench.0 == name);
    let (_, measure) = bench.with_context(|| {
        let names: Vec<_> = ALL.iter().map(|bench| bench.0).collect();
        format!("no benchmark is called {name}: {}", names.join(", "))
    })?;
    let report = measure()?;
    cells::some_chosen(name)?;
    report.print(json)?;
    ensure!(report.failures.is_empty(), "{} runs failed, see above", report.failures.len());
    Ok(())
}

/// Fails if the user has interrupted the run.
fn go_on() -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// The folder of this program's build. The programs that it starts are there too.
fn built() -> anyhow::Result<PathBuf> {
    let own = env::current_exe()?;
    Ok(own.parent().context("a program lies in a folder")?.to_owned())
}

/// The workspace's root: the folder above this crate's.
fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// Runs `lab/SCRIPT`, and decodes the last line of its output as JSON. The script limits its own waits.
fn measured_by<T: DeserializeOwned>(
    script: &str,
    arguments: impl IntoIterator<Item = String>,
) -> anyhow::Result<T> {
    let path = format!("lab/{script}");
    let output = Command::new(&path)
        .args(arguments)
        .current_dir(root())
        .env("SPILLWAY", built()?.join("spillway"))
        .env("LAB_SIZE", by_size("full", "ci"))
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("can't start {path}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(serde_json::from_str(said.lines().last().unwrap_or_default())?)
}

/// Builds the same packages together as `make build`: a build of fewer packages could reuse little of it. The results
/// are in this program's folder.
fn build_programs() -> anyhow::Result<()> {
    let folder = built()?;
    let target = folder.parent().context("target/release lies in target")?;
    let mut make = Command::new("make");
    make.args(["--silent", "build"]).current_dir(root());
    let status = make.env("CARGO_TARGET_DIR", target).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("can't start {make:?}"))?;
    ensure!(status.success(), "the build failed");
    Ok(())
}
