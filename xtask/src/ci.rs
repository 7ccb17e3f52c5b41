//! Runs every check in order, each under a title. After a failure the other checks still run; the end of the output
//! names all that failed.

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use cargo_metadata::MetadataCommand;

use crate::command::{self, execute, root, run_cargo};
use crate::{alone, glossary, layering, pages, parallel, unit_tests};

/// Time limit of the tests with many schedules, including their build: several times their duration on two cores.
const SCHEDULES_MAX: Duration = Duration::from_mins(12);

/// Benchmarks that set up the machine's one /dev/zram0: only one of them can run at a time.
const WITH_ZRAM: [&str; 4] = ["pager", "swap", "programs", "valkey"];

/// Runs all checks from the workspace's root, and prints how long each took.
///
/// # Errors
/// Names the check that failed.
pub fn run() -> anyhow::Result<()> {
    env::set_current_dir(root())?;
    let mut steps = Steps::default();
    all(&mut steps);
    steps.print();
    let failed: Vec<_> = steps.0.iter().filter(|step| step.failed).map(|step| step.title).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
    Ok(())
}

fn all(steps: &mut Steps) {
    steps.run("format", || run_cargo(&["fmt", "--all", "--check"]));
    steps.run("layering", layering::check);
    steps.run("words and widths of the pages", || pages::check().and_then(|()| glossary::check()));
    steps.run("links and spelling of the pages, and the OpenAPI document", || {
        execute(command::command("make").args(["--no-print-directory", "site"]))
    });
    let level = if has_own_compiler() { "-Dwarnings" } else { "-Wwarnings" };
    steps.run("lints", || {
        run_cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", level])
    });
    steps.run("licences and sources of dependencies", deny);
    steps.run("each package that is built alone", alone::check);
    steps.run("build of unit and property tests", unit_tests::build);
    steps.run("unit and property tests", unit_tests::run);
    steps.run("operations that meet, under many schedules", || {
        let package = ["test", "--locked", "--package", "spillway-store", "--features", "shuttle"];
        let mut command = command::limited_cargo(SCHEDULES_MAX);
        execute(command.args(package).args(["--test", "concurrency"]))
    });
    steps.run("documentation", || {
        let mut command = command::cargo();
        command.args(["doc", "--workspace", "--no-deps", "--locked"]);
        command.env("RUSTDOCFLAGS", level);
        execute(&mut command)
    });
    steps.run("release build", || {
        execute(command::command("make").arg("build"))?;
        // A server for a test and a page of the docs.
        let server = ["-p", "spillway-nbd", "--example", "serve"];
        run_cargo(&[&["build", "--release", "--locked"][..], &server].concat())
    });
    steps.run("benchmarks, one small round", benchmarks);
    steps.run("end-to-end tests", || {
        let target = MetadataCommand::new().no_deps().exec()?.target_directory;
        let mut command = command::command("lab/run-all");
        command.env("SPILLWAY", target.join("release/spillway"));
        // Use the lab's smaller sizes, unless the caller sets others.
        command.env("LAB_SIZE", env::var_os("LAB_SIZE").unwrap_or_else(|| "ci".into()));
        execute(&mut command)
    });
}

/// Whether the compiler has the version that the workspace names. A newer one has lints for which this code was not
/// written: they are only warnings then.
fn has_own_compiler() -> bool {
    let named = env!("CARGO_PKG_RUST_VERSION");
    let output = command::command("rustc").arg("--version").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let own = version.as_ref().is_ok_and(|it| it.starts_with(&format!("rustc {named}.")));
    if !own {
        println!("lints are warnings: the compiler is {version:?}, these are of {named}");
    }
    own
}

/// The checks that were run, in order.
#[derive(Default)]
struct Steps(Vec<Step>);

/// A check that was run.
struct Step {
    title: &'static str,
    took: Duration,
    failed: bool,
}

impl Steps {
    /// Runs one check under its title.
    fn run(&mut self, title: &'static str, check: impl FnOnce() -> anyhow::Result<()>) {
        println!("\n=== {title}");
        let start = Instant::now();
        let done = check();
        let took = start.elapsed();
        if let Err(error) = &done {
            println!("=== {title}: FAILED: {error:#}");
        }
        println!("=== {title}: {:.0} s", took.as_secs_f64());
        self.0.push(Step { title, took, failed: done.is_err() });
    }

    /// Prints the seconds of each check and of all.
    fn print(&self) {
        println!("\n=== seconds");
        for step in &self.0 {
            let failed = if step.failed { ", FAILED" } else { "" };
            println!("{:7.1}  {}{failed}", step.took.as_secs_f64(), step.title);
        }
        println!("{:7.1}  all", self.0.iter().map(|step| step.took.as_secs_f64()).sum::<f64>());
    }
}

/// Runs each benchmark. Its rows must name the processor, and a selection without a cell must fail.
fn benchmarks() -> anyhow::Result<()> {
    let names = command::cargo().args(["xtask", "bench"]).output()?;
    ensure!(
        names.status.success(),
        "the benchmarks do not build: {}",
        String::from_utf8_lossy(&names.stderr)
    );
    let names = String::from_utf8(names.stdout)?;
    let (with_zram, others): (Vec<_>, Vec<_>) =
        names.lines().partition(|name| WITH_ZRAM.contains(name));
    let mut groups = vec![with_zram];
    groups.extend(others.into_iter().map(|name| vec![name]));
    parallel::each(groups, |group| group.into_iter().try_for_each(run_benchmark))?;
    let nothing = benchmark("store").env("BENCH_ONLY", "no such cell").output()?;
    let errors = String::from_utf8_lossy(&nothing.stderr);
    // The compiler may print lines too.
    let own: Vec<_> = errors.lines().filter(|line| line.starts_with("bench: ")).collect();
    let refused = !nothing.status.success() && own.len() == 1;
    ensure!(refused, "BENCH_ONLY that chooses nothing: {}: {errors}", nothing.status);
    Ok(())
}

/// Runs a benchmark in its smallest size, and checks its rows.
fn run_benchmark(name: &str) -> anyhow::Result<()> {
    let start = Instant::now();
    let output = benchmark(name).env("BENCH_ROUNDS", "1").env("BENCH_SIZE", "ci").output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "bench {name}: {}\n{errors}", output.status);
    let rows = String::from_utf8(output.stdout)?;
    for row in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(row)?;
        let named = row["processor"].as_str().is_some_and(|processor| !processor.is_empty());
        ensure!(named, "bench {name}: a row names no processor: {row}");
    }
    let count = rows.lines().count();
    ensure!(count > 0, "bench {name} has no rows:\n{errors}");
    println!("bench {name}: {count} rows, {:.1} s", start.elapsed().as_secs_f64());
    // A benchmark prints a line for each side that this machine can't run.
    errors.lines().filter(|line| line.contains("left out")).for_each(|line| println!("{line}"));
    Ok(())
}

fn benchmark(name: &str) -> Command {
    let mut command = command::cargo();
    command.args(["xtask", "bench", name, "--json"]);
    command
}

/// Checks licences, sources and duplicate versions. CI can't reach the repository of the advisories.
fn deny() -> anyhow::Result<()> {
    let there = command::cargo().args(["deny", "--version"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("NOT CHECKED: cargo-deny is missing; cargo install --locked cargo-deny");
        return Ok(());
    }
    run_cargo(&[
        "deny",
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ])
}
