//! `kvcache`: moves chunks of a language model's cache from Python to a store and back. Compared with `memcpy` and
//! LMCache's own connector to Redis.
//!
//! A side is a path to a store; `lab/bench-kvcache` runs them alternately.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rows::{Report, Row, median};
use super::{build_programs, go_on, measured_by, root, rounds, wanted};

const BENCH: &str = "kvcache";
const FLOOR: &str = "memcpy";
/// The package's own calls, and LMCache's interface with this many threads.
const OURS: [&str; 5] = ["ring", "embedded", "network", "connector-1", "connector-8"];
/// LMCache's own connector, with this many connections.
const OTHERS: [&str; 2] = ["redis-1", "redis-8"];
/// The floor's copies of a page each. A store whose pages lie apart copies no faster, and fills memory that is new to it
/// no faster than the kernel clears it.
const PAGE_COPIES: [(&str, &str); 2] =
    [("pages", "memcpy page by page"), ("fresh", "memcpy page by page into fresh memory")];
/// The goal for a lookup of 1,000 keys in one call, ms.
const LOOKUP_MS: f64 = 0.3;

/// The results of all sides.
#[derive(Deserialize)]
struct Figures {
    /// By side, bytes of a chunk and direction: a figure for each round.
    gigabytes_s: BTreeMap<String, BTreeMap<u64, BTreeMap<String, Vec<f64>>>>,
    /// By side: a figure for each round, for 1,000 keys.
    lookup_ms: BTreeMap<String, Vec<f64>>,
}

impl Figures {
    fn rate(&self, side: &str, bytes: u64, direction: &str) -> Option<f64> {
        let rates = self.gigabytes_s.get(side)?.get(&bytes)?.get(direction)?;
        Some(median(rates.iter().copied()))
    }

    fn lookup(&self, side: &str) -> Option<f64> {
        self.lookup_ms.get(side).map(|times| median(times.iter().copied()))
    }
}

/// Measures all sides alternately.
///
/// # Errors
/// A build or a side that fails, or the user's interruption.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    let has_lmcache = root().join("lab/cache/lmcache/bin/python").exists();
    if !has_lmcache {
        eprintln!("LMCache's own connector is left out: lab/setup lmcache");
    }
    let others = OTHERS.iter().filter(|_| has_lmcache);
    let chosen: Vec<&str> =
        OURS.iter().chain(others).copied().filter(|side| wanted(side)).collect();
    go_on()?;
    let mut report = Report::default();
    if !chosen.is_empty()
        && let Some(figures) = report.keep(BENCH, measure(&chosen))
    {
        add_rows(&figures, &mut report);
    }
    Ok(report)
}

fn measure(sides: &[&str]) -> anyhow::Result<Figures> {
    let own = [rounds()?.to_string(), FLOOR.to_owned()];
    measured_by("bench-kvcache", own.into_iter().chain(sides.iter().map(|&side| side.to_owned())))
}

/// Adds a row for each of our rates compared with `memcpy`, and for our connector compared with LMCache's own.
fn add_rows(figures: &Figures, report: &mut Report) {
    for (copy, name) in PAGE_COPIES {
        for &bytes in figures.gigabytes_s.get(FLOOR).into_iter().flat_map(BTreeMap::keys).take(1) {
            let rate = |direction| figures.rate(FLOOR, bytes, direction);
            if let (Some(pages), Some(whole)) = (rate(copy), rate("copy")) {
                report.rows.push(Row::new(BENCH, name, "GB/s", pages, (FLOOR, whole)));
            }
        }
    }
    for side in OURS {
        for (&bytes, directions) in figures.gigabytes_s.get(side).into_iter().flatten() {
            for direction in directions.keys() {
                let Some(ours) = figures.rate(side, bytes, direction) else { continue };
                let metric = format!("{side}, {direction} of {} KiB", bytes >> 10);
                let copy = figures.rate(FLOOR, bytes, "copy").map(|rate| (FLOOR, rate));
                let redis =
                    |other: &'static str| Some((other, figures.rate(other, bytes, direction)?));
                let beside = copy.into_iter().chain(OTHERS.into_iter().filter_map(redis));
                for other in beside {
                    report.rows.push(Row::new(BENCH, metric.clone(), "GB/s", ours, other));
                }
            }
        }
        if let Some(ours) = figures.lookup(side) {
            let metric = format!("{side}, lookup of 1,000 keys");
            let redis =
                OTHERS.into_iter().filter_map(|other| Some((other, figures.lookup(other)?)));
            for other in [("the aim", LOOKUP_MS)].into_iter().chain(redis) {
                report.rows.push(Row::new(BENCH, metric.clone(), "ms", ours, other));
            }
        }
    }
}
