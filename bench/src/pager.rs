//! `pager`: 256 MiB in 64 MiB of local memory, compared with a bare handler and with the kernel's swap on zram.

mod computing;

use std::fmt;

use super::machine::SwapSettings;
use super::rows::{Report, Row, figure, line_of, median, table};
use super::sides::{self, Options};
use super::spec::{Content, Floor, Handler, MISS_NS, Outcome, PAGE, Pattern, Spec};
use super::zram::Zram;
use super::{build_programs, by_size, go_on, rounds, wanted};

const BENCH: &str = "pager";
const MIB: u64 = 1 << 20;
/// The control group also contains the program's code, stacks and page tables. With this much more, as many pages of
/// the mapping are resident as with Spillway's budget; the last table shows it.
const OWN_BYTES: u64 = MIB;
/// One page per swap-in, and eight, the kernel's default.
const CLUSTERS: [u32; 2] = [0, 3];

const HANDLERS: [Handler; 2] = [Handler::Thread, Handler::Signal];
/// The eviction schemes between which the default chooses.
const SCHEMES: [&str; 2] = ["on-demand", "pre-evict"];

/// Pages of the program.
fn pages() -> usize {
    by_size(256, 16) * MIB as usize / PAGE
}

/// Most bytes of them that may be resident.
fn local_bytes() -> u64 {
    (pages() * PAGE) as u64 / 4
}

/// A kind of work of the program.
#[derive(Clone, Copy, PartialEq)]
struct Cell {
    pattern: Pattern,
    threads: usize,
    content: Content,
    write_percent: u32,
}

/// The system that handles its misses.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Ours(Handler),
    /// With a handler thread, and the eviction scheme set by hand.
    ByHand(&'static str),
    Floor(Handler),
    /// The bare handler, limited to as many resident pages as Spillway.
    Bound(Handler),
    Zram {
        page_cluster: u32,
    },
}

/// The result of one side of one cell in one round.
struct Sample {
    cell: Cell,
    side: Side,
    outcome: Outcome,
    /// The median that the handler itself measured, ns.
    handler_p50_ns: Option<f64>,
    /// Resident pages, bytes. For Spillway its own peak, which includes pages that wait to leave; otherwise the
    /// mapping's resident pages at the end.
    local_bytes: u64,
    /// Peak memory of the store, in addition to the resident pages, bytes.
    store_peak_bytes: Option<u64>,
}

/// Runs all cells on all sides, round by round.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains sides that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let mut report = Report::default();
    let no_zram = Zram::unavailable();
    if let Some(reason) = &no_zram {
        let line = format!("The kernel's swap on zram is left out: {reason}.");
        eprintln!("{line}");
        report.remarks.push(line);
    }
    let cells: Vec<_> = all_cells().into_iter().filter(|cell| wanted(&cell.to_string())).collect();
    let mut samples = Vec::new();
    let mut computing = Vec::new();
    let computes = wanted(computing::NAME);
    let rounds = rounds()?;
    for round in 1..=rounds {
        for &cell in &cells {
            eprintln!("round {round} of {rounds}: {cell}");
            for side in sides_of(cell) {
                if matches!(side, Side::Zram { .. }) && no_zram.is_some() {
                    continue;
                }
                go_on()?;
                let sample = report.keep(&format!("{cell} {side}"), measure(cell, side));
                samples.extend(sample);
            }
        }
        if computes {
            eprintln!("round {round} of {rounds}: {}", computing::NAME);
            for side in [computing::Side::Ours, computing::Side::Zram, computing::Side::Resident] {
                if side == computing::Side::Zram && no_zram.is_some() {
                    continue;
                }
                go_on()?;
                let name = format!("{} {side}", computing::NAME);
                computing.extend(report.keep(&name, computing::measure(side)));
            }
        }
    }
    report.rows = cells.iter().flat_map(|&cell| rows(cell, &samples)).collect();
    if !cells.is_empty() {
        report.remarks.extend(remarks(&cells, &samples));
    }
    if computes {
        report.rows.extend(computing::rows(&computing));
        report.remarks.push(computing::remark());
    }
    // A side that was left out, or always failed, has no figure to compare.
    report.rows.retain(|row| !row.ratio.is_nan());
    Ok(report)
}

fn all_cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for pattern in [Pattern::Random, Pattern::Sequential] {
        for threads in [1, 2] {
            for content in [Content::Random, Content::Half] {
                for write_percent in [0, 30] {
                    cells.push(Cell { pattern, threads, content, write_percent });
                }
            }
        }
    }
    cells
}

fn sides_of(cell: Cell) -> Vec<Side> {
    let mut sides = Vec::new();
    if cell.pattern == Pattern::Random {
        sides.extend(SCHEMES.map(Side::ByHand));
    }
    for handler in HANDLERS {
        sides.extend([Side::Ours(handler), Side::Floor(handler)]);
        if cell.pattern == Pattern::Random {
            sides.push(Side::Bound(handler));
        }
    }
    let clusters = if cell.pattern == Pattern::Sequential { &CLUSTERS[..] } else { &CLUSTERS[..1] };
    sides.extend(clusters.iter().map(|&page_cluster| Side::Zram { page_cluster }));
    sides
}

fn spec_of(cell: Cell) -> Spec {
    Spec {
        pages: pages(),
        content: cell.content,
        pattern: cell.pattern,
        scan_percent: 0,
        write_percent: cell.write_percent,
        threads: cell.threads,
        // Long enough for `--eviction auto` to choose, which takes some 1.2 s.
        warm_ops: by_size(120_000, 1_000),
        ops: 2 * pages() as u64,
        compute_ns: 0,
        floor: None,
    }
}

fn measure(cell: Cell, side: Side) -> anyhow::Result<Sample> {
    let spec = spec_of(cell);
    let resident_bytes = |outcome: Outcome| outcome.resident_pages * PAGE as u64;
    let (outcome, local_bytes, handler_p50_ns, store_peak_bytes) = match side {
        Side::Ours(faults) => ours(&spec, faults, None)?,
        Side::ByHand(scheme) => ours(&spec, Handler::Thread, Some(("auto", scheme)))?,
        Side::Floor(handler) | Side::Bound(handler) => {
            let bound = matches!(side, Side::Bound(_)).then_some(local_bytes() as usize / PAGE);
            let outcome = sides::floor(&spec, Floor { handler, local_pages: bound })?;
            (outcome, resident_bytes(outcome), outcome.handler_p50_ns, None)
        }
        Side::Zram { page_cluster } => {
            let limit_bytes = local_bytes() + OWN_BYTES;
            let (outcome, peak_bytes) =
                sides::zram(&spec, SwapSettings { limit_bytes, page_cluster })?;
            (outcome, resident_bytes(outcome), None, Some(peak_bytes))
        }
    };
    Ok(Sample { cell, side, outcome, local_bytes, handler_p50_ns, store_peak_bytes })
}

/// The outcome, the peak of local memory, the handler's median, and the store's peak.
type Measured = (Outcome, u64, Option<f64>, Option<u64>);

fn ours(
    spec: &Spec,
    faults: Handler,
    policy: Option<(&'static str, &'static str)>,
) -> anyhow::Result<Measured> {
    let options = Options { local_bytes: local_bytes(), faults, policy, link_delay_us: 0 };
    let (outcome, stats) = sides::spillway(spec, &options)?;
    let handler_p50_ns = stats.fault_times.p50_ns as f64;
    let peaks = stats.peaks;
    Ok((outcome, peaks.local_bytes, Some(handler_p50_ns), Some(peaks.store_bytes)))
}

/// The median of a figure over the rounds of one side of one cell; NaN without rounds.
fn of(samples: &[Sample], cell: Cell, side: Side, figure: impl Fn(&Sample) -> f64) -> f64 {
    let mine = samples.iter().filter(|sample| sample.cell == cell && sample.side == side);
    median(mine.map(figure))
}

/// Far pages served per second. In a random walk, a quarter of the accesses find a resident page. In a sequential walk
/// over four times the local memory none would, except for prefetched pages.
fn served_per_s(sample: &Sample) -> f64 {
    let outcome = &sample.outcome;
    let served = if sample.cell.pattern == Pattern::Random { outcome.misses } else { outcome.ops };
    served as f64 / outcome.seconds
}

/// All accesses per second, hits and misses. This is what the program experiences if the two sides keep different
/// pages.
fn accesses_per_s(sample: &Sample) -> f64 {
    sample.outcome.ops as f64 / sample.outcome.seconds
}

fn rows(cell: Cell, samples: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    let get = |side, figure: &dyn Fn(&Sample) -> f64| of(samples, cell, side, figure);
    let p50_us = |sample: &Sample| sample.outcome.miss_p50_ns / 1e3;
    let p99_us = |sample: &Sample| sample.outcome.miss_p99_ns / 1e3;
    for handler in HANDLERS {
        let (ours, floor) = (Side::Ours(handler), Side::Floor(handler));
        let mut row = |metric: &str, unit, figure: &dyn Fn(&Sample) -> f64, other: Side| {
            let metric = format!("{cell} {handler}: {metric}", handler = name(handler));
            let other = (other.to_string(), get(other, figure));
            rows.push(Row::new(BENCH, metric, unit, get(ours, figure), other));
        };
        for side in sides_of(cell).into_iter().filter(|side| matches!(side, Side::Zram { .. })) {
            row("far pages", "1/s", &served_per_s, side);
            if cell.pattern == Pattern::Random {
                row("accesses", "1/s", &accesses_per_s, side);
            }
        }
        row("fault p50", "us", &p50_us, floor);
        row("fault p99", "us", &p99_us, floor);
        if cell.pattern == Pattern::Random {
            row("fault p50", "us", &p50_us, Side::Bound(handler));
            row("fault p99", "us", &p99_us, Side::Bound(handler));
            row("far pages", "1/s", &served_per_s, Side::Bound(handler));
        }
        row("fault p50", "us", &p50_us, Side::Zram { page_cluster: 0 });
        row("fault p99", "us", &p99_us, Side::Zram { page_cluster: 0 });
        if cell.pattern == Pattern::Sequential {
            let random = Cell { pattern: Pattern::Random, ..cell };
            rows.push(Row::new(
                BENCH,
                format!("{cell} {}: far pages", name(handler)),
                "1/s",
                get(ours, &served_per_s),
                ("own random rate", of(samples, random, ours, served_per_s)),
            ));
        }
        rows.push(Row::new(
            BENCH,
            format!("{cell} {}: memory in all", name(handler)),
            "MiB",
            get(ours, &total_mib),
            ("zram", get(Side::Zram { page_cluster: 0 }, &total_mib)),
        ));
    }
    rows.extend(counted(cell, samples));
    if cell.pattern == Pattern::Random {
        rows.push(beside_the_better_scheme(cell, samples));
    }
    rows
}

/// What the kernel counted for each miss, with a handler thread.
fn counted(cell: Cell, samples: &[Sample]) -> Vec<Row> {
    let (ours, zram) = (Side::Ours(Handler::Thread), Side::Zram { page_cluster: 0 });
    let row = |metric: &str, count: fn(&Outcome) -> u64| {
        let a_miss = |sample: &Sample| count(&sample.outcome) as f64 / sample.outcome.misses as f64;
        let metric = format!("{cell} thread: {metric} a miss");
        let other = (zram.to_string(), of(samples, cell, zram, a_miss));
        Row::new(BENCH, metric, "1", of(samples, cell, ours, a_miss), other)
    };
    vec![
        row("interrupts", |outcome| outcome.interrupts),
        row("switches", |outcome| outcome.switches),
    ]
}

/// The default scheme compared with the better one of those set by hand.
fn beside_the_better_scheme(cell: Cell, samples: &[Sample]) -> Row {
    let rate = |side| of(samples, cell, side, served_per_s);
    let rates =
        SCHEMES.map(|scheme| (format!("{scheme} by hand, the better"), rate(Side::ByHand(scheme))));
    let [one, other] = rates;
    let better = if other.1 > one.1 { other } else { one };
    let metric = format!("{cell} thread: far pages, eviction auto");
    Row::new(BENCH, metric, "1/s", rate(Side::Ours(Handler::Thread)), better)
}

/// Resident pages and the store with the rest, MiB.
fn total_mib(sample: &Sample) -> f64 {
    let store_bytes = sample.store_peak_bytes.map_or(f64::NAN, |bytes| bytes as f64);
    (sample.local_bytes as f64 + store_bytes) / MIB as f64
}

fn remarks(cells: &[Cell], samples: &[Sample]) -> Vec<String> {
    let setting = format!(
        "{} MiB of private anonymous memory without huge pages in {} MiB; zram: LZ4, a control \
         group of {} MiB, the program's own {} MiB included, page-cluster 0 unless stated. \
         Page contents: random bytes, or \"half\", which LZ4 brings to 0.52. A miss is an access \
         above {MISS_NS} ns. Floor: a handler that copies the page in and never evicts; each page once. Bound: the same, and a thread that \
         moves the oldest pages out, so that as many stay as of ours; no table, store or choice. A sequential \
         fault brings in many pages, so its time stands for all of them. Interrupts: TLB flushes, function calls and \
         wake-ups between processors, of the whole machine. Switches: context switches of the program and of the tasks \
         that page it.",
        (pages() * PAGE) as u64 / MIB,
        local_bytes() / MIB,
        (local_bytes() + OWN_BYTES) / MIB,
        OWN_BYTES / MIB,
    );
    vec![
        setting,
        residence(cells, samples),
        where_time_goes(cells, samples),
        overview(cells, samples),
    ]
}

/// A line for each cell: rates compared with zram's, medians with the floors'.
fn overview(all: &[Cell], samples: &[Sample]) -> String {
    let mut lines = vec![line_of([
        "far pages/s, fault p50",
        "zram",
        "thread",
        "ratio",
        "signal",
        "ratio",
        "thread us",
        "floor",
        "ratio",
        "signal us",
        "floor",
        "ratio",
        "thread bound",
        "ratio",
        "signal bound",
        "ratio",
    ])];
    for &cell in all {
        let rate = |side| of(samples, cell, side, served_per_s);
        let p50_us = |side| of(samples, cell, side, |sample| sample.outcome.miss_p50_ns) / 1e3;
        let zram = rate(Side::Zram { page_cluster: 0 });
        let mut line = vec![cell.to_string(), figure(zram)];
        for handler in HANDLERS {
            let ours = rate(Side::Ours(handler));
            line.extend([figure(ours), figure(ours / zram)]);
        }
        for handler in HANDLERS {
            let (ours, floor) = (p50_us(Side::Ours(handler)), p50_us(Side::Floor(handler)));
            line.extend([figure(ours), figure(floor), figure(ours / floor)]);
        }
        for handler in HANDLERS {
            let (ours, bound) = (p50_us(Side::Ours(handler)), p50_us(Side::Bound(handler)));
            line.extend([figure(bound), figure(ours / bound)]);
        }
        lines.push(line);
    }
    table(&lines)
}

/// The components of a random miss, as far as both ends can measure them.
fn where_time_goes(cells: &[Cell], samples: &[Sample]) -> String {
    let mut lines = vec![line_of([
        "random misses, us",
        "seen p50",
        "floor seen",
        "handler p50",
        "floor handler",
        "seen mean",
        "time per miss",
        "beside misses",
    ])];
    for &cell in cells.iter().filter(|cell| cell.pattern == Pattern::Random) {
        for handler in HANDLERS {
            let us = |side, figure: &dyn Fn(&Sample) -> f64| of(samples, cell, side, figure) / 1e3;
            let (ours, floor) = (Side::Ours(handler), Side::Floor(handler));
            let seen = |sample: &Sample| sample.outcome.miss_p50_ns;
            let inside = |sample: &Sample| sample.handler_p50_ns.unwrap_or(f64::NAN);
            let mean = us(ours, &|sample| sample.outcome.miss_mean_ns);
            let per_miss = us(ours, &|sample| {
                let thread_ns = sample.outcome.seconds * 1e9 * cell.threads as f64;
                thread_ns / sample.outcome.misses as f64
            });
            lines.push(line_of([
                &format!("{cell} {}", name(handler)),
                &figure(us(ours, &seen)),
                &figure(us(floor, &seen)),
                &figure(us(ours, &inside)),
                &figure(us(floor, &inside)),
                &figure(mean),
                &figure(per_miss),
                &figure(per_miss - mean),
            ]));
        }
    }
    format!(
        "{}\n\nseen: by the program. handler: from reading the fault to having answered it; with \
         a thread the woken program may run on that core first, so this can come near what is \
         seen; Spillway counts it within 12.5 %, first touches included. floor: the same of the bare handler. time per miss: threads x time / misses. \
         beside misses: what of it no miss saw: hits, and the cores' time that eviction took.",
        table(&lines)
    )
}

/// Whether all sides really had the same memory.
fn residence(all: &[Cell], samples: &[Sample]) -> String {
    let mut lines = vec![line_of(["MiB", "mapping", "local", "store peak", "in all"])];
    for &cell in all {
        for side in sides_of(cell)
            .into_iter()
            .filter(|side| !matches!(side, Side::Floor(_) | Side::Bound(_)))
        {
            let mib = |bytes: f64| figure(bytes / MIB as f64);
            let mapping = |sample: &Sample| sample.outcome.resident_pages as f64 * PAGE as f64;
            let local = |sample: &Sample| sample.local_bytes as f64;
            let store =
                |sample: &Sample| sample.store_peak_bytes.map_or(f64::NAN, |bytes| bytes as f64);
            lines.push(line_of([
                &format!("{cell} {side}"),
                &mib(of(samples, cell, side, mapping)),
                &mib(of(samples, cell, side, local)),
                &mib(of(samples, cell, side, store)),
                &figure(of(samples, cell, side, total_mib)),
            ]));
        }
    }
    format!(
        "{}\n\nmapping: its pages that are resident at the end. local: what counts against the \
         budget, at its peak; Spillway keeps victims for a while in case they are wanted again.",
        table(&lines)
    )
}

fn name(handler: Handler) -> &'static str {
    match handler {
        Handler::Thread => "thread",
        Handler::Signal => "signal",
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = if self.pattern == Pattern::Random { "random" } else { "sequential" };
        let content = if self.content == Content::Random { "incompressible" } else { "half" };
        write!(out, "{pattern} {}t {content} {}%w", self.threads, self.write_percent)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(handler) => write!(out, "spillway {}", name(*handler)),
            Self::ByHand(scheme) => write!(out, "spillway thread {scheme}"),
            Self::Floor(handler) => write!(out, "floor {}", name(*handler)),
            Self::Bound(handler) => write!(out, "bound {}", name(*handler)),
            Self::Zram { page_cluster } => write!(out, "zram page-cluster {page_cluster}"),
        }
    }
}
