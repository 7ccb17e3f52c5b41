//! `resp`: GET and SET compared with Redis, Valkey with I/O threads, and memcached, all with the same client.
//!
//! A cell is one run of `lab/bench-resp`, in which the servers alternate. All servers and the client share the
//! processors.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rows::{Report, Row, median};
use super::{build_programs, by_size, go_on, measured_by, rounds, wanted};

const BENCH: &str = "resp";
const OURS: &str = "spillway";
/// Seconds of one server's turn.
const TURN_S: &str = "1";

/// The results of a server's turns.
#[derive(Deserialize)]
struct Turn {
    per_second: f64,
    /// The server's CPU time per request, microseconds.
    cpu_us: f64,
}

struct Cell {
    socket: &'static str,
    operation: &'static str,
    value_bytes: usize,
    connections: usize,
    depth: usize,
}

impl Cell {
    fn name(&self) -> String {
        let Self { socket, operation, value_bytes, connections, depth } = self;
        format!(
            "{operation} of {value_bytes} bytes, {socket}, {connections} connections, depth {depth}"
        )
    }

    fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for socket in ["unix", "tcp"] {
            for value_bytes in [100, 4096, 1 << 20] {
                for operation in ["get", "set"] {
                    for connections in [1, 50] {
                        for depth in [1, 16] {
                            cells.push(Self { socket, operation, value_bytes, connections, depth });
                        }
                    }
                }
            }
        }
        let step = by_size(1, 17);
        cells.into_iter().step_by(step).collect()
    }

    fn measure(&self) -> anyhow::Result<BTreeMap<String, Vec<Turn>>> {
        let numbers = [self.value_bytes, self.connections, self.depth, rounds()?];
        let words = [self.socket, self.operation].map(str::to_owned).into_iter();
        let numbers = numbers.map(|number| number.to_string());
        let turn_s = by_size(TURN_S, "0.2").to_owned();
        measured_by("bench-resp", words.chain(numbers).chain([turn_s]))
    }
}

/// Measures all cells, one after the other.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains cells that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let mut report = Report::default();
    for cell in Cell::all() {
        let name = cell.name();
        if !wanted(&name) {
            continue;
        }
        go_on()?;
        eprintln!("{name}");
        let measured = cell.measure();
        if let Some(servers) = report.keep(&name, measured) {
            add_rows(&name, &servers, &mut report);
        }
    }
    Ok(report)
}

/// A figure of a turn.
type Figure = fn(&Turn) -> f64;

/// Adds a row for each of our medians compared with each other server's.
fn add_rows(name: &str, servers: &BTreeMap<String, Vec<Turn>>, report: &mut Report) {
    let middle = |turns: &[Turn], value: Figure| median(turns.iter().map(value));
    let Some(ours) = servers.get(OURS) else { return };
    for (other, turns) in servers.iter().filter(|(server, _)| *server != OURS) {
        let values: [(&str, &'static str, Figure); 2] = [
            ("requests", "1/s", |turn| turn.per_second),
            ("processor time a request", "us", |turn| turn.cpu_us),
        ];
        for (metric, unit, value) in values {
            let theirs = (other.clone(), middle(turns, value));
            let metric = format!("{name}: {metric}");
            report.rows.push(Row::new(BENCH, metric, unit, middle(ours, value), theirs));
        }
    }
}
