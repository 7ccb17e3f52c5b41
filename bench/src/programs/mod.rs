//! `programs`: whole programs in a quarter to half of their memory, compared with the kernel's swap on zram.
//!
//! Each program runs plain, under `spillway run` without options, and in a control group with swap on zram and as much
//! local memory. If `BENCH_BEFORE` names another build's `spillway`, it also runs under that. All runs must write the
//! same output.

mod inputs;
mod verdict;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::machine::SwapSettings;
use super::rows::{Report, Row, figure, line_of, median, table};
use super::zram::Zram;
use super::{build_programs, built, by_size, go_on, rounds, wanted};
use inputs::Program;
use verdict::Medians;

const BENCH: &str = "programs";
const MIB: f64 = (1 << 20) as f64;
/// Limit of the time of a run: a thrashing one may never end.
const LIMIT: Duration = Duration::from_secs(900);

/// The way in which a program runs.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Plain,
    Ours,
    Before,
    Zram,
}

const SIDES: [Side; 4] = [Side::Plain, Side::Ours, Side::Before, Side::Zram];

/// A successful run.
struct Sample {
    program: &'static str,
    side: Side,
    seconds: f64,
    /// Peak of all memory, bytes.
    memory_bytes: f64,
    /// Pages fetched; with zram, faults that waited for a page.
    fetches: f64,
}

/// The statistics of a run that are used here; docs/stats.md lists all.
#[derive(Deserialize)]
struct Stats {
    counters: Counters,
    fullest: Fullest,
    peaks: Peaks,
}

#[derive(Deserialize)]
struct Counters {
    fetches: u64,
    prefetches: u64,
}

#[derive(Deserialize)]
struct Fullest {
    total_bytes: u64,
}

#[derive(Deserialize)]
struct Peaks {
    native_bytes: u64,
}

/// Runs all programs on all sides, round by round.
///
/// # Errors
/// A build that fails, no space for the inputs, or the user's interruption. The report contains runs that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let folder = Folder::new()?;
    let all: Vec<_> = inputs::all(&folder.0)?.into_iter().filter(|it| wanted(it.name)).collect();
    let mut bench = Bench {
        folder: &folder.0,
        ours: built()?.join("spillway"),
        before: env::var_os("BENCH_BEFORE").map(PathBuf::from),
        no_zram: Zram::unavailable(),
        samples: Vec::new(),
        ended_badly: String::new(),
        report: Report::default(),
    };
    let rounds = rounds()?;
    for round in 1..=rounds {
        for program in &all {
            eprintln!("round {round} of {rounds}: {}", program.name);
            bench.round(program)?;
        }
    }
    Ok(bench.finish(&all))
}

/// The state of the benchmark: its inputs and results so far.
struct Bench<'a> {
    folder: &'a Path,
    ours: PathBuf,
    before: Option<PathBuf>,
    no_zram: Option<String>,
    samples: Vec<Sample>,
    ended_badly: String,
    report: Report,
}

impl Bench<'_> {
    /// Runs a program once on each side. The control group must also hold the memory that is not paged.
    fn round(&mut self, program: &Program) -> anyhow::Result<()> {
        let mut said = None;
        let mut native_bytes = 0;
        for side in SIDES {
            go_on()?;
            let spillway = match side {
                Side::Before => self.before.as_deref(),
                Side::Zram if self.no_zram.is_some() => None,
                _ => Some(&*self.ours),
            };
            let Some(spillway) = spillway else { continue };
            let runner = Runner { folder: self.folder, program, spillway, native_bytes };
            let name = format!("{} {}", program.name, side.name());
            match runner.run(side) {
                Ok((sample, output, native)) => {
                    ensure!(*said.get_or_insert(output) == output, "{name} wrote something else");
                    native_bytes = native_bytes.max(native);
                    self.samples.push(sample);
                }
                // A failure under the kernel's swap is a result.
                Err(error) if side == Side::Zram => {
                    let _ = writeln!(self.ended_badly, "{name}: {error:#}");
                }
                Err(error) => {
                    self.report.keep(&name, Err::<(), _>(error));
                }
            }
        }
        Ok(())
    }

    fn finish(self, all: &[Program]) -> Report {
        let Self { samples, ended_badly, mut report, no_zram, .. } = self;
        report.rows = all.iter().flat_map(|program| rows(program, &samples)).collect();
        let medians: Vec<_> = all.iter().map(|program| medians(program, &samples)).collect();
        report.rows.extend(verdict::rows(BENCH, &medians));
        report.remarks.push(overview(all, &samples));
        report.remarks.extend(verdict::too_small(&medians));
        report.remarks.extend(
            no_zram.map(|reason| format!("The kernel's swap on zram is left out: {reason}.")),
        );
        if !ended_badly.is_empty() {
            report.remarks.push(format!("These did not end well:\n{}", ended_badly.trim_end()));
        }
        report
    }
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ours => "spillway",
            Self::Before => "before",
            Self::Zram => "zram",
        }
    }
}

/// A folder for inputs and outputs, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let path = env::temp_dir().join(format!("spillway-bench-programs-{}", process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The parameters of a run.
struct Runner<'a> {
    folder: &'a Path,
    program: &'a Program,
    spillway: &'a Path,
    /// Memory of the program that is not paged, bytes.
    native_bytes: u64,
}

impl Runner<'_> {
    /// Runs the program. Returns the sample, the digest of the program's output, and its native memory.
    fn run(&self, side: Side) -> anyhow::Result<(Sample, u64, u64)> {
        let stats_path = self.folder.join("stats.json");
        let _ = fs::remove_file(&stats_path);
        let limit_bytes = self.program.local_bytes + self.native_bytes;
        let zram = match side {
            Side::Zram => {
                let settings = SwapSettings { limit_bytes, page_cluster: 0 };
                Some(Zram::set_up(settings).context("setting up zram")?)
            }
            _ => None,
        };
        let mut command = match (&zram, side) {
            (Some(zram), _) => zram.machine.command(Path::new(&self.program.words[0])),
            (None, Side::Plain) => Command::new(&self.program.words[0]),
            (None, _) => {
                let mut command = Command::new(self.spillway);
                command.args(["run", "--register", "off", "--local"]);
                command.arg(self.program.local_bytes.to_string());
                command.arg("--stats").arg(&stats_path).arg("--").arg(&self.program.words[0]);
                command
            }
        };
        command.args(&self.program.words[1..]).env("LC_ALL", "C").current_dir(self.folder);
        let output = self.folder.join("output");
        command.stdin(Stdio::null()).stdout(File::create(&output)?);
        let errors = self.folder.join("errors");
        command.stderr(File::create(&errors)?);
        let began = Instant::now();
        let status = wait(command.spawn().with_context(|| format!("starting {command:?}"))?)?;
        let seconds = began.elapsed().as_secs_f64();
        ensure!(status.success(), "{status}: {}", last_line(&errors));
        let (memory_bytes, fetches, native_bytes) = match (&zram, side) {
            (Some(zram), _) => {
                ((limit_bytes + zram.peak_bytes()?) as f64, zram.machine.misses()? as f64, 0)
            }
            (None, Side::Plain) => (f64::NAN, f64::NAN, 0),
            (None, _) => {
                let stats: Stats = serde_json::from_slice(&fs::read(&stats_path)?)?;
                let native = stats.peaks.native_bytes;
                let in_all = stats.fullest.total_bytes + native;
                let counters = stats.counters;
                (in_all as f64, (counters.fetches + counters.prefetches) as f64, native)
            }
        };
        let digest = digest(&output)?;
        let program = self.program.name;
        Ok((Sample { program, side, seconds, memory_bytes, fetches }, digest, native_bytes))
    }
}

/// Waits for a run, up to the limit.
fn wait(mut child: Child) -> anyhow::Result<process::ExitStatus> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let interrupted = go_on();
        if interrupted.is_err() || began.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            interrupted?;
            bail!("took longer than {} s", LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn last_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().last().unwrap_or_default().to_owned()
}

fn digest(path: &Path) -> anyhow::Result<u64> {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(path)?);
    Ok(hasher.finish())
}

/// The median of a figure of one side of one program; NaN without samples.
fn of(samples: &[Sample], program: &Program, side: Side, figure: fn(&Sample) -> f64) -> f64 {
    let mine = samples.iter().filter(|it| it.program == program.name && it.side == side);
    median(mine.map(figure))
}

fn medians(program: &Program, samples: &[Sample]) -> Medians {
    let seconds = |side| of(samples, program, side, |it| it.seconds);
    Medians {
        name: program.name,
        one_thread: program.one_thread,
        ours_seconds: seconds(Side::Ours),
        zram_seconds: seconds(Side::Zram),
        zram_misses: of(samples, program, Side::Zram, |it| it.fetches),
    }
}

fn rows(program: &Program, samples: &[Sample]) -> Vec<Row> {
    let seconds = |side| of(samples, program, side, |it| it.seconds);
    let mib = |side| of(samples, program, side, |it| it.memory_bytes) / MIB;
    let row = |what: &str, unit, ours, side: Side, other| {
        Row::new(BENCH, format!("{}: {what}", program.name), unit, ours, (side.name(), other))
    };
    let mut rows = vec![
        row("time", "s", seconds(Side::Ours), Side::Zram, seconds(Side::Zram)),
        row("time", "s", seconds(Side::Ours), Side::Before, seconds(Side::Before)),
        row("time", "s", seconds(Side::Ours), Side::Plain, seconds(Side::Plain)),
        row("memory in all", "MiB", mib(Side::Ours), Side::Zram, mib(Side::Zram)),
    ];
    // A side that was left out, or always failed, has no figure to compare.
    rows.retain(|row| row.ratio.is_finite());
    rows
}

/// A line for each program: medians, and the range of its runs.
fn overview(all: &[Program], samples: &[Sample]) -> String {
    let mut lines = vec![line_of([
        "s (least to most)",
        "local MiB",
        "plain",
        "spillway",
        "before",
        "zram",
        "pages back",
        "zram's",
        "MiB in all",
        "zram's",
    ])];
    for program in all {
        let mut line = vec![program.name.to_owned(), figure(program.local_bytes as f64 / MIB)];
        for side in SIDES {
            let mine = || samples.iter().filter(|it| it.program == program.name && it.side == side);
            let least = mine().map(|it| it.seconds).fold(f64::INFINITY, f64::min);
            let most = mine().map(|it| it.seconds).fold(0.0, f64::max);
            line.push(match mine().count() {
                0 => "-".to_owned(),
                _ => format!(
                    "{} ({least:.1} to {most:.1})",
                    figure(median(mine().map(|it| it.seconds)))
                ),
            });
        }
        for side in [Side::Ours, Side::Zram] {
            line.push(figure(of(samples, program, side, |it| it.fetches)));
        }
        for side in [Side::Ours, Side::Zram] {
            line.push(figure(of(samples, program, side, |it| it.memory_bytes) / MIB));
        }
        lines.push(line);
    }
    format!(
        "{}\n\nzram: LZ4, page-cluster 0, a control group of as much local memory and what the program has besides (code, stacks, files). \
         MiB in all: that, and what is compressed; of Spillway local memory, store and native memory. {}",
        table(&lines),
        by_size("", "These are small inputs, to see that it runs.")
    )
}
