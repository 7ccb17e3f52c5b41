//! `resize`: a guest under QEMU grows by 512 MiB and shrinks again, compared with QEMU's own methods and with the
//! paper.
//!
//! Guests run in software (TCG), so they take longer than under KVM: compare figures only within a run. A side is one
//! run of `lab/bench-resize`, with one guest and all its rounds.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rows::{Report, Row, figure, line_of, median, table};
use super::{build_programs, by_size, go_on, measured_by, rounds, wanted};

const BENCH: &str = "resize";
/// Rounds of one guest for each of `BENCH_ROUNDS`: by default 40 changes of a kind.
const CHANGES: usize = 4;
/// "Resizing guests", evaluation: medians of 40 rounds with sections of 512 MB on its ARM board, ms.
const PAPER_MS: [(&str, f64); 3] = [("grow", 313.0), ("shrink", 323.0), ("shrink touched", 323.0)];
const OURS: [&str; 5] = [
    "spillway-hugetlbfs-ready",
    "spillway-hugetlbfs",
    "spillway-tmpfs-ready",
    "spillway-tmpfs",
    "spillway-hugetlbfs-ready-no-init",
];
const OTHERS: [&str; 3] = ["virtio-mem", "balloon", "dimm"];

/// The results of a side.
#[derive(Deserialize)]
struct Side {
    side: String,
    steps: Vec<Step>,
    busy: Busy,
}

/// One change, microseconds.
#[derive(Deserialize)]
struct Step {
    step: String,
    total: f64,
    #[serde(flatten)]
    stages: BTreeMap<String, f64>,
}

/// The effect of growing and shrinking on a guest whose only processor was busy.
#[derive(Deserialize)]
struct Busy {
    stall_us: f64,
    /// How much less work it did in its slowest tenth of a second than in the median one; 1 means none at all.
    dip: f64,
}

impl Side {
    /// Times of the changes of a kind, ms.
    fn of(&self, kind: &str, value: impl Fn(&Step) -> f64) -> Vec<f64> {
        let steps = self.steps.iter().filter(|step| step.step == kind);
        steps.map(|step| value(step) / 1e3).collect()
    }

    fn median_ms(&self, kind: &str) -> f64 {
        median(self.of(kind, |step| step.total))
    }
}

/// Measures all sides, one after the other.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains sides that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let mut report = Report::default();
    let count = rounds()? * by_size(CHANGES, 1);
    let all = OURS.iter().chain(&OTHERS);
    let chosen: Vec<_> = all.copied().filter(|side| wanted(side)).collect();
    let small = [OURS[0], OTHERS[0]];
    let mut sides = Vec::new();
    for name in chosen.into_iter().filter(|side| by_size(true, small.contains(side))) {
        go_on()?;
        eprintln!("{name}: {count} rounds");
        sides.extend(report.keep(name, measure(name, count)));
    }
    add_rows(&sides, &mut report);
    report.remarks.push(steps_table(&sides));
    report.remarks.push(busy_table(&sides));
    Ok(report)
}

fn measure(name: &str, count: usize) -> anyhow::Result<Side> {
    measured_by("bench-resize", [name.to_owned(), count.to_string()])
}

/// Adds a row for each of our medians compared with each other side's and with the paper's.
fn add_rows(sides: &[Side], report: &mut Report) {
    let (ours, others): (Vec<&Side>, _) =
        sides.iter().partition(|side| OURS.contains(&side.side.as_str()));
    for side in ours {
        for (kind, paper_ms) in PAPER_MS {
            let (metric, ms) = (format!("{}, {kind} 512 MiB", side.side), side.median_ms(kind));
            for other in &others {
                let theirs = (other.side.clone(), other.median_ms(kind));
                report.rows.push(Row::new(BENCH, metric.clone(), "ms", ms, theirs));
            }
            let paper = ("the paper, on its ARM board", paper_ms);
            report.rows.push(Row::new(BENCH, metric, "ms", ms, paper));
        }
    }
}

/// Median and worst of each kind of change, and the medians of the daemon's stages, ms.
fn steps_table(sides: &[Side]) -> String {
    let stages = ["reserve", "offline", "guest", "release"];
    let mut lines = vec![
        line_of(["side", "change", "median", "worst", "worst / median"])
            .into_iter()
            .chain(stages.map(str::to_owned))
            .collect::<Vec<_>>(),
    ];
    for side in sides {
        for (kind, _) in PAPER_MS {
            let all = side.of(kind, |step| step.total);
            let worst = all.iter().copied().fold(0.0, f64::max);
            let middle = side.median_ms(kind);
            let mut line = vec![side.side.clone(), kind.to_owned()];
            line.extend([figure(middle), figure(worst), format!("{:.1}", worst / middle)]);
            line.extend(stages.map(|stage| {
                let of = side.of(kind, |step| step.stages.get(stage).copied().unwrap_or(-1.0));
                let ms = median(of);
                if ms < 0.0 { "-".to_owned() } else { figure(ms) }
            }));
            lines.push(line);
        }
    }
    format!("milliseconds, 512 MiB more and less:\n{}", table(&lines))
}

/// The effects on a busy guest.
fn busy_table(sides: &[Side]) -> String {
    let mut lines = vec![line_of(["side", "longest stall, ms", "dip"])];
    lines.extend(sides.iter().map(|side| {
        let dip = format!("{:.0} %", side.busy.dip * 100.0);
        vec![side.side.clone(), figure(side.busy.stall_us / 1e3), dip]
    }));
    format!(
        "a guest whose one processor is busy, grown and shrunk once; dip: how much less it did in its slowest tenth of a \
         second:\n{}",
        table(&lines)
    )
}
