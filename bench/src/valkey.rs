//! `valkey`: a server whose values exceed its memory limit, with the module, and with swap to compressed memory and to
//! a disk, as in the paper on utmem; the module's overhead while all values are in the server's memory; and where one
//! command spends its time.
//!
//! A cell is one run of `lab/bench-valkey`, in which the sides alternate.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::rows::{Report, Row, median};
use super::{build_programs, by_size, go_on, measured_by, rounds, wanted};

const BENCH: &str = "valkey";
/// Seconds of one side's turn.
const TURN_S: &str = "3";
/// The values' size as a multiple of the limit.
const FILLS: [&str; 4] = ["0.5", "1", "1.5", "2"];
/// Requests in flight while a server is filled beyond its limit: 1 shows the latency for the user; with 16 the server
/// never sleeps.
const DEPTHS: [&str; 2] = ["1", "16"];

/// The results of a side's turn.
#[derive(Deserialize)]
pub struct Turn {
    per_second: Option<f64>,
    p99_us: Option<f64>,
    /// Memory of the server and of the process that serves it, MiB.
    memory_mib: Option<f64>,
}

/// Bytes of values at the border above which a client waits for them beside the server, and above it.
const BORDER_BYTES: [&str; 4] = ["65536", "262144", "1048576", "4194304"];
/// Number of values of 4 KiB that one command gets at that border.
const BORDER_VALUES: [&str; 4] = ["16", "64", "256", "1024"];
/// The cell that shows where one command spends its time.
const LAYERS: &str = "layers";

/// Microseconds of each layer that a command passes, and of the whole.
type Layers = BTreeMap<String, f64>;

/// Each side's turns.
pub type Sides = BTreeMap<String, Vec<Turn>>;

/// A figure of a turn.
type Figure = fn(&Turn) -> Option<f64>;

struct Cell {
    name: String,
    arguments: Vec<String>,
    /// Our sides, and those that they are compared with.
    ours: &'static [&'static str],
    others: &'static [&'static str],
}

impl Cell {
    fn fill(times: &str, ratio: &str, keys: &str, depth: &str) -> Self {
        const SET_PERCENT: &str = "10";
        let name = format!("{times} times the limit, {ratio}:1, {keys} keys, depth {depth}");
        let arguments =
            ["fill", times, ratio, keys, SET_PERCENT, depth].map(str::to_owned).to_vec();
        Self { name, arguments, ours: &["module", "dedup"], others: &["zram", "disk"] }
    }

    /// A client's PING beside another that gets values of so many bytes from the store, so many with each command.
    fn border(bytes: &str, values: &str) -> Self {
        let name = match values {
            "1" => format!("PING beside GETs of {bytes} bytes"),
            values => format!("PING beside MGETs of {values} values of {bytes} bytes"),
        };
        let arguments = ["border", bytes, values].map(str::to_owned).to_vec();
        Self { name, arguments, ours: &["blocked"], others: &["held", "rest"] }
    }

    fn inline(operation: &str, connections: &str, depth: &str) -> Self {
        let name = format!("inline {operation}, {connections} connections, depth {depth}");
        let arguments = ["inline", operation, connections, depth].map(str::to_owned).to_vec();
        Self { name, arguments, ours: &["by name", "transparent"], others: &["plain"] }
    }

    fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for keys in ["uniform", "zipf"] {
            for ratio in ["1", "2"] {
                for depth in DEPTHS {
                    cells.extend(FILLS.map(|times| Self::fill(times, ratio, keys, depth)));
                }
            }
        }
        for operation in ["get", "set"] {
            for (connections, depth) in [("1", "1"), ("1", "16"), ("20", "1"), ("20", "16")] {
                cells.push(Self::inline(operation, connections, depth));
            }
        }
        cells.extend(BORDER_BYTES.map(|bytes| Self::border(bytes, "1")));
        cells.extend(BORDER_VALUES.map(|values| Self::border("4096", values)));
        let step = by_size(1, 8);
        cells.into_iter().step_by(step).collect()
    }

    fn measure(&self) -> anyhow::Result<Sides> {
        let own = [rounds()?.to_string(), by_size(TURN_S, "0.2").to_owned()];
        measured_by("bench-valkey", self.arguments.iter().cloned().chain(own))
    }
}

/// Adds rows with the figures of each of `ours` beside those of each of `others`.
pub fn add_rows(
    bench: &'static str,
    cell: &str,
    (ours, others): (&[&str], &[&str]),
    sides: &Sides,
    report: &mut Report,
) {
    let figures: [(&str, &'static str, Figure); 3] = [
        ("requests", "1/s", |turn| turn.per_second),
        ("99th percentile", "us", |turn| turn.p99_us),
        ("memory", "MiB", |turn| turn.memory_mib),
    ];
    for mine in ours {
        for other in others.iter().filter(|other| *other != mine) {
            for (what, unit, figure) in figures {
                let middles = (middle(sides, mine, figure), middle(sides, other, figure));
                let (Some(own), Some(theirs)) = middles else { continue };
                let metric = format!("{cell}: {what}, {mine}");
                report.rows.push(Row::new(bench, metric, unit, own, (*other, theirs)));
            }
        }
    }
}

/// The median of a side's figure, if it has one.
fn middle(sides: &Sides, side: &str, figure: Figure) -> Option<f64> {
    let values: Vec<f64> = sides.get(side)?.iter().filter_map(figure).collect();
    (!values.is_empty()).then(|| median(values))
}

/// Measures all cells, one after the other.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains cells that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let mut report = Report::default();
    if wanted(LAYERS) {
        layers(&mut report)?;
    }
    for cell in Cell::all() {
        if !wanted(&cell.name) {
            continue;
        }
        go_on()?;
        eprintln!("{}", cell.name);
        let measured = cell.measure();
        if let Some(sides) = report.keep(&cell.name, measured) {
            add_rows(BENCH, &cell.name, (cell.ours, cell.others), &sides, &mut report);
        }
    }
    Ok(report)
}

/// Adds the layers of SPILL.SET and SPILL.GET of a page, each beside the whole.
fn layers(report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{LAYERS}");
    let arguments = [LAYERS, &rounds()?.to_string(), by_size(TURN_S, "0.2")].map(str::to_owned);
    let measured = measured_by::<BTreeMap<String, Vec<Layers>>>("bench-valkey", arguments);
    let Some(commands) = report.keep(LAYERS, measured) else { return Ok(()) };
    for (command, turns) in commands {
        let middle = |name: &str| median(turns.iter().filter_map(|turn| turn.get(name).copied()));
        let whole = middle("whole");
        for name in turns.iter().flat_map(Layers::keys).collect::<BTreeSet<_>>() {
            let metric = format!("{LAYERS} of SPILL.{command} of 4 KiB: {name}");
            report.rows.push(Row::new(BENCH, metric, "us", middle(name), ("whole", whole)));
        }
    }
    Ok(())
}
