//! `swap`: random pages of 256 MiB in 64 MiB of local memory, compared with the kernel's swap on zram, on a file with
//! zswap, and on a file.

use std::fmt;

use super::machine::SwapSettings;
use super::rows::{Report, Row, figure, line_of, median, table};
use super::sides::{self, Options};
use super::spec::{Content, Handler, Outcome, PAGE, Pattern, Spec};
use super::swap_file::SwapFile;
use super::zram::Zram;
use super::{build_programs, by_size, go_on, rounds, wanted};

const BENCH: &str = "swap";
const MIB: u64 = 1 << 20;
/// The control group also contains the program's code, stacks and page tables.
const OWN_BYTES: u64 = MIB;

/// A kind of work of the program.
#[derive(Clone, Copy, PartialEq)]
struct Cell {
    content: Content,
    threads: usize,
}

/// The system that handles its misses.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Ours,
    Zram,
    Zswap,
    File,
}

const SIDES: [Side; 4] = [Side::Ours, Side::Zram, Side::Zswap, Side::File];

struct Sample {
    cell: Cell,
    side: Side,
    outcome: Outcome,
    /// Resident pages and the memory that holds the others, bytes.
    memory_bytes: u64,
}

/// Runs all cells on all sides, round by round.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains sides that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let mut report = Report::default();
    let mut sides = vec![];
    for side in SIDES {
        match side.unavailable() {
            None => sides.push(side),
            Some(reason) => {
                let line = format!("{side} is left out: {reason}.");
                eprintln!("{line}");
                report.remarks.push(line);
            }
        }
    }
    let cells: Vec<_> = all_cells().into_iter().filter(|cell| wanted(&cell.to_string())).collect();
    let (mut samples, rounds) = (Vec::new(), rounds()?);
    for round in 1..=rounds {
        for &cell in &cells {
            eprintln!("round {round} of {rounds}: {cell}");
            for &side in &sides {
                go_on()?;
                samples.extend(report.keep(&format!("{cell} {side}"), measure(cell, side)));
            }
        }
    }
    for &cell in &cells {
        let rate = |side| of(&samples, cell, side, accesses_per_s);
        for side in [Side::Zram, Side::Zswap, Side::File] {
            let other = (side.to_string(), rate(side));
            let metric = format!("{cell}: accesses");
            report.rows.push(Row::new(BENCH, metric, "1/s", rate(Side::Ours), other));
        }
    }
    // A side that was left out, or always failed, has no figure to compare.
    report.rows.retain(|row| !row.ratio.is_nan());
    if !cells.is_empty() {
        report.remarks.push(overview(&cells, &samples));
    }
    Ok(report)
}

fn all_cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for content in [Content::Half, Content::Random] {
        for threads in [1, 2] {
            cells.push(Cell { content, threads });
        }
    }
    cells
}

fn measure(cell: Cell, side: Side) -> anyhow::Result<Sample> {
    let pages = by_size(256, 16) * MIB as usize / PAGE;
    let local_bytes = (pages * PAGE) as u64 / 4;
    let spec = Spec {
        pages,
        content: cell.content,
        pattern: Pattern::Random,
        scan_percent: 0,
        // A page that is written leaves again. Else, a page of a swap file would be written once.
        write_percent: 30,
        threads: cell.threads,
        // Long enough for `--eviction auto` to choose, which takes some 1.2 s.
        warm_ops: by_size(120_000, 1_000),
        ops: 2 * pages as u64,
        compute_ns: 0,
        floor: None,
    };
    let settings = SwapSettings { limit_bytes: local_bytes + OWN_BYTES, page_cluster: 0 };
    let (outcome, far_bytes) = match side {
        Side::Ours => {
            let faults = Handler::Thread;
            let options = Options { local_bytes, faults, policy: None, link_delay_us: 0 };
            let (outcome, stats) = sides::spillway(&spec, &options)?;
            (outcome, stats.peaks.store_bytes)
        }
        Side::Zram => sides::retried(|| sides::zram(&spec, settings))?,
        Side::Zswap | Side::File => {
            sides::retried(|| sides::swap_file(&spec, settings, side == Side::Zswap))?
        }
    };
    let memory_bytes = outcome.resident_pages * PAGE as u64 + far_bytes;
    Ok(Sample { cell, side, outcome, memory_bytes })
}

/// All accesses per second, hits and misses.
fn accesses_per_s(sample: &Sample) -> f64 {
    sample.outcome.ops as f64 / sample.outcome.seconds
}

/// The median of a figure over the rounds of one side of one cell; NaN without rounds.
fn of(samples: &[Sample], cell: Cell, side: Side, figure: impl Fn(&Sample) -> f64) -> f64 {
    let mine = samples.iter().filter(|sample| sample.cell == cell && sample.side == side);
    median(mine.map(figure))
}

fn overview(cells: &[Cell], samples: &[Sample]) -> String {
    let titles = ["cell, side", "accesses/s", "misses/s", "miss p50 us", "p99 us", "memory MiB"];
    let mut lines = vec![line_of(titles)];
    for &cell in cells {
        for side in SIDES {
            let get = |of_sample: fn(&Sample) -> f64| figure(of(samples, cell, side, of_sample));
            lines.push(line_of([
                &format!("{cell}, {side}"),
                &get(accesses_per_s),
                &get(|sample| sample.outcome.misses as f64 / sample.outcome.seconds),
                &get(|sample| sample.outcome.miss_p50_ns / 1e3),
                &get(|sample| sample.outcome.miss_p99_ns / 1e3),
                &get(|sample| sample.memory_bytes as f64 / MIB as f64),
            ]));
        }
    }
    format!(
        "{}\n\nThree of ten accesses write. zram: LZ4. zswap: LZ4 if this kernel has it for zswap, in front of the file. The file is {}, on the disk \
         of the build. The kernel's sides are in a control group of as much memory, and read one page for each miss. \
         memory: resident pages, and the store, zram or zswap at its peak.",
        table(&lines),
        SwapFile::path().map_or_else(|_| "-".into(), |path| path.display().to_string()),
    )
}

impl Side {
    /// Why it can't run here, if it can't.
    fn unavailable(self) -> Option<String> {
        match self {
            Self::Ours => None,
            Self::Zram => Zram::unavailable(),
            Self::Zswap | Self::File => SwapFile::unavailable(self == Self::Zswap),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = if self.content == Content::Random { "incompressible" } else { "half" };
        write!(out, "random {}t {content} 30%w", self.threads)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Ours => "spillway",
            Self::Zram => "zram",
            Self::Zswap => "zswap",
            Self::File => "swap file",
        })
    }
}
