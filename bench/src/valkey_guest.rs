//! `valkey-guest`: a server in a guest whose values exceed its memory limit: with the module over `guest:`, and with swap
//! to a tmem disk of the host, to a plain disk, and to compressed memory of the guest.
//!
//! The guests run in software (TCG), which makes server, client and kernel many times slower than KVM, but not what the
//! host does for them.

use std::collections::BTreeMap;

use super::rows::Report;
use super::valkey::{Sides, add_rows};
use super::{build_programs, by_size, go_on, measured_by, rounds, wanted};

const BENCH: &str = "valkey-guest";
/// The values' size as a multiple of the limit.
const FILLS: [&str; 3] = ["0.5", "1", "2"];
const KEYS: [&str; 2] = ["uniform", "zipf"];
const RATIO: &str = "2";
const SET_PERCENT: &str = "10";
/// Requests in flight.
const DEPTH: &str = "16";
/// Seconds of one distribution in a side's turn.
const TURN_S: &str = "3";
const OURS: [&str; 2] = ["module", "tmem disk"];
const OTHERS: [&str; 3] = ["tmem disk", "disk", "zram"];

/// Measures all cells in the same guests.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains guests that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    go_on()?;
    let mut report = Report::default();
    // In the small size only the last, which swaps.
    let fills = &FILLS[by_size(0, FILLS.len() - 1)..];
    let cells = fills.iter().flat_map(|times| KEYS.map(|keys| (*times, keys)));
    let cells: Vec<_> = cells.filter(|cell| wanted(&name_of(cell))).collect();
    if cells.is_empty() {
        return Ok(report);
    }
    let Some(measured) = report.keep(BENCH, measure(&cells)) else { return Ok(report) };
    for cell @ (times, keys) in &cells {
        if let Some(sides) = measured.get(&format!("{times} {keys}")) {
            add_rows(BENCH, &name_of(cell), (&OURS, &OTHERS), sides, &mut report);
        }
    }
    Ok(report)
}

fn name_of((times, keys): &(&str, &str)) -> String {
    format!("{times} times the limit, {RATIO}:1, {keys} keys, depth {DEPTH}")
}

/// The turns of each cell, by its fill and its keys.
fn measure(cells: &[(&str, &str)]) -> anyhow::Result<BTreeMap<String, Sides>> {
    let list = |all: &[&'static str], is_one: &dyn Fn(&str) -> bool| {
        all.iter().copied().filter(|it| is_one(it)).collect::<Vec<_>>().join(",")
    };
    let fills = list(&FILLS, &|it| cells.iter().any(|cell| cell.0 == it));
    let keys = list(&KEYS, &|it| cells.iter().any(|cell| cell.1 == it));
    let rounds = rounds()?.to_string();
    let turn_s = by_size(TURN_S, "0.2");
    let arguments = [&fills, RATIO, &keys, SET_PERCENT, DEPTH, &rounds, turn_s];
    measured_by("bench-valkey-guest", arguments.map(str::to_owned))
}
