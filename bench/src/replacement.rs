//! `replacement`: Round-robin and Clock, on-demand and pre-evict, compared as in the memory-blade paper, over an
//! embedded store behind an emulated link.

use std::fmt;

use super::rows::{Report, Row, figure, line_of, median, table};
use super::sides::{self, Options};
use super::spec::{Content, Handler, PAGE, Pattern, Spec};
use super::{build_programs, by_size, go_on, rounds, wanted};

const BENCH: &str = "replacement";
const REMOTE_PERCENT: [u64; 3] = [25, 50, 75];
const LINK_DELAY_US: [u32; 3] = [0, 4, 30];
/// The delay of the paper's emulated blade.
const PAPER_DELAY_US: u32 = 4;
const SCAN_PERCENT: u32 = 10;
const WRITE_PERCENT: u32 = 30;

const RR: &str = "round-robin";
const CLOCK: &str = "clock";
const ON_DEMAND: &str = "on-demand";
const PRE_EVICT: &str = "pre-evict";

/// Pages of the program.
fn pages() -> usize {
    by_size(256 << 20, 16 << 20) / PAGE
}

/// Untimed accesses.
fn warm_ops() -> u64 {
    ops() / 4
}

/// Timed accesses.
fn ops() -> u64 {
    by_size(200_000, 10_000)
}

/// The share of remote memory, and its delay.
#[derive(Clone, Copy, PartialEq)]
struct MemorySplit {
    remote_percent: u64,
    link_delay_us: u32,
}

/// `--replacement` and `--eviction`.
type Policy = (&'static str, &'static str);

/// One run.
struct Sample {
    place: MemorySplit,
    policy: Policy,
    /// Percentage of accesses that needed a transfer.
    remote_percent: f64,
    /// Percentage of accesses that the victim pool answered.
    rescued_percent: f64,
    miss_mean_us: f64,
    miss_p50_us: f64,
    handler_p50_us: f64,
    seconds: f64,
}

/// Runs all policies with all splits, round by round.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains runs that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let mut report = Report::default();
    let places: Vec<_> = places().filter(|place| wanted(&place.to_string())).collect();
    let mut samples = Vec::new();
    let rounds = rounds()?;
    for round in 1..=rounds {
        for &place in &places {
            eprintln!("round {round} of {rounds}: {place}");
            for policy in policies() {
                go_on()?;
                let name = format!("{place} {} {}", policy.0, policy.1);
                samples.extend(report.keep(&name, measure(place, policy)));
            }
        }
    }
    for &place in &places {
        report.rows.extend(rows(place, &samples));
    }
    report.remarks = vec![setting(), cells(&places, &samples), findings(&samples)];
    Ok(report)
}

fn places() -> impl Iterator<Item = MemorySplit> {
    let at = |remote_percent| LINK_DELAY_US.map(|delay| (remote_percent, delay));
    let places = REMOTE_PERCENT.into_iter().flat_map(at);
    places.map(|(remote_percent, link_delay_us)| MemorySplit { remote_percent, link_delay_us })
}

fn policies() -> [Policy; 4] {
    [(RR, ON_DEMAND), (CLOCK, ON_DEMAND), (RR, PRE_EVICT), (CLOCK, PRE_EVICT)]
}

fn measure(place: MemorySplit, policy: Policy) -> anyhow::Result<Sample> {
    let spec = Spec {
        pages: pages(),
        content: Content::Half,
        pattern: Pattern::Zipf,
        scan_percent: SCAN_PERCENT,
        write_percent: WRITE_PERCENT,
        threads: 1,
        warm_ops: warm_ops(),
        ops: ops(),
        compute_ns: 0,
        floor: None,
    };
    let options = Options {
        local_bytes: (pages() * PAGE) as u64 * (100 - place.remote_percent) / 100,
        faults: Handler::Thread,
        policy: Some(policy),
        link_delay_us: place.link_delay_us,
    };
    let (outcome, stats) = sides::spillway(&spec, &options)?;
    // The counters include the warm-up accesses, which are the same under each policy.
    let percent = |count: u64| 100.0 * count as f64 / (warm_ops() + ops()) as f64;
    Ok(Sample {
        place,
        policy,
        remote_percent: percent(stats.counters.fetches),
        rescued_percent: percent(stats.counters.rescues),
        miss_mean_us: outcome.miss_mean_ns / 1e3,
        miss_p50_us: outcome.miss_p50_ns / 1e3,
        handler_p50_us: stats.fault_times.p50_ns as f64 / 1e3,
        seconds: outcome.seconds,
    })
}

/// The median over the rounds; NaN if all rounds failed.
fn of(
    samples: &[Sample],
    place: MemorySplit,
    policy: Policy,
    figure: impl Fn(&Sample) -> f64,
) -> f64 {
    let mine = samples.iter().filter(|sample| sample.place == place && sample.policy == policy);
    median(mine.map(figure))
}

fn rows(place: MemorySplit, samples: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    let pairs = [
        ((RR, ON_DEMAND), (CLOCK, ON_DEMAND)),
        ((RR, PRE_EVICT), (CLOCK, PRE_EVICT)),
        ((RR, PRE_EVICT), (RR, ON_DEMAND)),
        ((CLOCK, PRE_EVICT), (CLOCK, ON_DEMAND)),
    ];
    for (policy, other) in pairs {
        let mut row = |metric: &str, unit, figure: fn(&Sample) -> f64| {
            let metric = format!("{place} {} {}: {metric}", policy.0, policy.1);
            let other = (format!("{} {}", other.0, other.1), of(samples, place, other, figure));
            rows.push(Row::new(BENCH, metric, unit, of(samples, place, policy, figure), other));
        };
        row("remote accesses", "%", |sample| sample.remote_percent);
        row("handler p50", "us", |sample| sample.handler_p50_us);
        row("miss mean", "us", |sample| sample.miss_mean_us);
        row("miss p50", "us", |sample| sample.miss_p50_us);
        row("run time", "s", |sample| sample.seconds);
    }
    rows.retain(|row| row.ratio.is_finite());
    rows
}

fn setting() -> String {
    format!(
        "{} MiB of pages that LZ4 halves, one thread, Zipf 0.99 with {SCAN_PERCENT} % of the \
         accesses a sequential scan, {WRITE_PERCENT} % writing; {} accesses timed. remote: \
         accesses that needed a transfer. Clock is the victim pool, for want of accessed bits: a \
         page rescued from it is a miss without a transfer. handler: from reading a fault to \
         having answered it, within 12.5 %, first touches included; miss: as the program sees it.",
        (pages() * PAGE) >> 20,
        ops()
    )
}

fn cells(places: &[MemorySplit], samples: &[Sample]) -> String {
    let mut lines = vec![line_of([
        "cell",
        "remote %",
        "rescued %",
        "handler p50 us",
        "miss p50 us",
        "miss mean us",
        "run s",
    ])];
    for &place in places {
        for policy in policies() {
            let text = |part: fn(&Sample) -> f64| figure(of(samples, place, policy, part));
            lines.push(line_of([
                &format!("{place} {} {}", policy.0, policy.1),
                &text(|sample| sample.remote_percent),
                &text(|sample| sample.rescued_percent),
                &text(|sample| sample.handler_p50_us),
                &text(|sample| sample.miss_p50_us),
                &text(|sample| sample.miss_mean_us),
                &text(|sample| sample.seconds),
            ]));
        }
    }
    table(&lines)
}

/// The paper's findings and the same quantities here, at the paper's delay.
fn findings(samples: &[Sample]) -> String {
    let saved = |policy, other, part: fn(&Sample) -> f64| -> Vec<String> {
        let at = REMOTE_PERCENT.iter().map(|&remote_percent| {
            let place = MemorySplit { remote_percent, link_delay_us: PAPER_DELAY_US };
            let of = |policy| of(samples, place, policy, part);
            format!("{:.0} %", 100.0 * (1.0 - of(policy) / of(other)))
        });
        at.collect()
    };
    let miss = |sample: &Sample| sample.miss_mean_us;
    let remote = |sample: &Sample| sample.remote_percent;
    let seconds = |sample: &Sample| sample.seconds;
    let (rr_late, clock_late) = ((RR, ON_DEMAND), (CLOCK, ON_DEMAND));
    let (rr_early, clock_early) = ((RR, PRE_EVICT), (CLOCK, PRE_EVICT));
    let compared = [
        (
            "Round-robin handles a miss faster than Clock",
            "26 to 35 %",
            saved(rr_late, clock_late, miss),
        ),
        ("Clock needs fewer remote accesses", "16, 33, 3 %", saved(clock_late, rr_late, remote)),
        ("Round-robin ends sooner than Clock", "12 % at 75 %", saved(rr_late, clock_late, seconds)),
        (
            "pre-evict handles a miss faster (Round-robin)",
            "17 to 28 %",
            saved(rr_early, rr_late, miss),
        ),
        (
            "pre-evict handles a miss faster (Clock)",
            "17 to 28 %",
            saved(clock_early, clock_late, miss),
        ),
        (
            "pre-evict ends sooner (Round-robin)",
            "23 % on average",
            saved(rr_early, rr_late, seconds),
        ),
        (
            "pre-evict ends sooner (Clock)",
            "23 % on average",
            saved(clock_early, clock_late, seconds),
        ),
    ];
    let mut lines = vec![line_of(["finding, 4 us link", "paper", "25 %", "50 %", "75 % remote"])];
    for (finding, paper, here) in compared {
        lines.push([finding, paper].map(str::to_owned).into_iter().chain(here).collect());
    }
    format!("{}\n\nA negative figure is the other way round.", table(&lines))
}

impl fmt::Display for MemorySplit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}% remote {}us", self.remote_percent, self.link_delay_us)
    }
}
