//! Threads that compute half of their time, with one and with two of them: how much of the second processor's work a
//! program loses to its misses.

use std::fmt;

use super::{Cell, MIB, OWN_BYTES, local_bytes, pages, spec_of};
use crate::machine::SwapSettings;
use crate::rows::{Row, median};
use crate::sides::{self, Options};
use crate::spec::{Content, Handler, Outcome, Pattern, Spec};

/// The name by which `BENCH_ONLY` selects it.
pub const NAME: &str = "random half computing";
/// Work between accesses of the side that has no misses, ns.
const RESIDENT_COMPUTE_NS: u64 = 10_000;

/// Who pages the program.
#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    /// Spillway, no option given but the budget.
    Ours,
    /// The kernel's swap.
    Zram,
    /// Nobody: all pages fit.
    Resident,
}

/// The compute rates of one side in one round: accesses a second, each with the same work.
pub struct Sample {
    side: Side,
    one_thread: f64,
    two_threads: f64,
}

/// Measures a side. A thread computes after each access for as long as an access took on average when one thread only
/// accessed.
pub fn measure(side: Side) -> anyhow::Result<Sample> {
    let compute_ns = match side {
        Side::Resident => RESIDENT_COMPUTE_NS,
        Side::Ours | Side::Zram => (1e9 / rate(side, 1, 0)?) as u64,
    };
    Ok(Sample {
        side,
        one_thread: rate(side, 1, compute_ns)?,
        two_threads: rate(side, 2, compute_ns)?,
    })
}

/// Accesses a second.
fn rate(side: Side, threads: usize, compute_ns: u64) -> anyhow::Result<f64> {
    let cell =
        Cell { pattern: Pattern::Random, threads, content: Content::Random, write_percent: 0 };
    let spec = Spec { compute_ns, ..spec_of(cell) };
    let outcome: Outcome = match side {
        Side::Ours => {
            let options = Options {
                local_bytes: local_bytes(),
                faults: Handler::Thread,
                policy: None,
                link_delay_us: 0,
            };
            sides::spillway(&spec, &options)?.0
        }
        Side::Zram => {
            let limit_bytes = local_bytes() + OWN_BYTES;
            sides::zram(&spec, SwapSettings { limit_bytes, page_cluster: 0 })?.0
        }
        Side::Resident => sides::resident(&spec)?,
    };
    Ok(outcome.ops as f64 / outcome.seconds)
}

/// Rows of the medians: two threads compared with one, and that with the other sides.
pub fn rows(samples: &[Sample]) -> Vec<Row> {
    let of = |side, figure: &dyn Fn(&Sample) -> f64| {
        median(samples.iter().filter(|sample| sample.side == side).map(figure))
    };
    let gain = |side| of(side, &|sample| sample.two_threads / sample.one_thread);
    let one = of(Side::Ours, &|sample| sample.one_thread);
    let two = of(Side::Ours, &|sample| sample.two_threads);
    let mut rows = vec![Row::new(
        super::BENCH,
        format!("{NAME}: work of two threads"),
        "1/s",
        two,
        ("one thread", one),
    )];
    for side in [Side::Zram, Side::Resident] {
        let metric = format!("{NAME}: two threads over one");
        rows.push(Row::new(
            super::BENCH,
            metric,
            "times",
            gain(Side::Ours),
            (side.to_string(), gain(side)),
        ));
    }
    rows
}

/// What the rows mean.
pub fn remark() -> String {
    format!(
        "{NAME}: {} MiB in {} MiB, incompressible, random. A thread computes after each access for as long as an \
         access takes on average with one thread that only accesses.",
        pages() as u64 * crate::spec::PAGE as u64 / MIB,
        local_bytes() / MIB,
    )
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Ours => "spillway",
            Self::Zram => "zram page-cluster 0",
            Self::Resident => "all pages resident",
        })
    }
}
