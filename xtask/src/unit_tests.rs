//! Builds and runs the unit and property tests of the workspace. `cargo test` runs one executable after the other; here
//! two run at a time.

use std::fs::{self, File};
use std::io::BufReader;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cargo_metadata::camino::Utf8PathBuf;
use cargo_metadata::{Message, MetadataCommand};

use crate::command::{self, execute};
use crate::parallel;

/// How long one executable, or all examples in the documentation, may run: several times the duration of the slowest.
const MAX: Duration = Duration::from_mins(8);

/// Executables that measure times or rates. They run last, one at a time.
const ALONE: [&str; 2] = ["polling", "load"];

/// An executable with tests.
struct Tests {
    /// The name of its target.
    name: String,
    path: Utf8PathBuf,
    /// The folder of its package, where it runs.
    folder: Utf8PathBuf,
}

/// Builds the tests.
///
/// # Errors
/// If the build fails.
pub fn build() -> anyhow::Result<()> {
    built().map(|_| ())
}

/// Runs the tests, then the examples in the documentation.
///
/// # Errors
/// Names the executables that failed. Their output is printed before.
pub fn run() -> anyhow::Result<()> {
    let target = MetadataCommand::new().no_deps().exec()?.target_directory;
    let logs = target.join("test-logs");
    fs::create_dir_all(&logs).with_context(|| format!("can't make {logs}"))?;
    let (alone, beside): (Vec<_>, Vec<_>) =
        built()?.into_iter().partition(|it| ALONE.contains(&it.name.as_str()));
    ensure!(alone.len() == ALONE.len(), "a test of {ALONE:?} is missing");
    let run = |tests: Tests| tests.run(&logs);
    parallel::all([
        parallel::each(beside, run),
        parallel::all(alone.into_iter().map(run)),
        execute(command::limited_cargo(MAX).args(["test", "--workspace", "--locked", "--doc"])),
    ])
}

/// Builds the tests. Returns all executables.
fn built() -> anyhow::Result<Vec<Tests>> {
    let mut build = command::cargo();
    build.args(["test", "--workspace", "--locked", "--no-run", "--quiet"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let mut child = build.stdout(Stdio::piped()).spawn().context("can't start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut all = Vec::new();
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message?
            && artifact.profile.test
            && let Some(path) = artifact.executable
        {
            let folder = artifact.manifest_path.parent().context("a manifest in no folder")?;
            all.push(Tests { name: artifact.target.name, path, folder: folder.into() });
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{build:?}: {status}");
    ensure!(!all.is_empty(), "{build:?} built no tests");
    Ok(all)
}

impl Tests {
    /// Runs them like `cargo test`, with their output in a file: a process that they leave behind can't delay the others.
    fn run(self, logs: &Utf8PathBuf) -> anyhow::Result<()> {
        let file = self.path.file_name().context("an executable without a name")?;
        let log = logs.join(file).with_extension("log");
        let output = File::create(&log).with_context(|| format!("can't make {log}"))?;
        let mut command = command::limited(&self.path, MAX);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let start = Instant::now();
        let status = command.status().with_context(|| format!("can't start {file}"))?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let took_s = start.elapsed().as_secs_f64();
        if status.success() {
            println!("{file}: {took_s:.1} s, {}", summary(&text));
        } else {
            println!("{text}\n{file}: FAILED after {took_s:.1} s");
        }
        ensure!(status.success(), "{file}: {status}");
        Ok(())
    }
}

/// Its line of results.
fn summary(output: &str) -> &str {
    let prefix = "test result: ";
    output.lines().rev().find_map(|line| line.strip_prefix(prefix)).unwrap_or("no tests")
}
