//! Latency histograms of the front ends' commands.

use std::fmt::Write;

use spillway_serving::{BOUNDS_NS, CommandKind, LatencyHistogram};

use crate::metric::{Kind, Metric, Scale};

/// The commands of a front end at one moment.
#[derive(Clone, Debug, Default)]
pub struct CommandSample {
    /// The front end's name.
    pub front_end: &'static str,
    /// The latencies of each kind of its commands.
    pub latencies: Vec<(CommandKind, LatencyHistogram)>,
}

/// Metrics of each front end's commands.
pub(crate) const COMMAND: [Metric<LatencyHistogram>; 1] = [Metric {
    name: "spillway_command_duration_seconds",
    kind: Kind::Histogram,
    help: "Time that the daemon works on a command, without waiting for its peer. Of the ring's commands, one in 64 is \
           timed, together with those that it executes at the same time.",
    scale: Scale::One,
    value: |histogram| Some(histogram.counts.iter().sum()),
}];

/// Writes a histogram's lines in Prometheus' text format.
pub(crate) fn histogram(
    out: &mut String,
    metric: &Metric<LatencyHistogram>,
    (front_end, kind): (&str, CommandKind),
    latencies: &LatencyHistogram,
) {
    let (name, count) = (metric.name, (metric.value)(latencies).unwrap_or_default());
    let labels = format!("frontend=\"{front_end}\",command=\"{}\"", kind.name());
    let mut below = 0;
    // Writing to a string can't fail.
    for (bound_ns, count) in BOUNDS_NS.iter().zip(latencies.counts) {
        below += count;
        let bound = *bound_ns as f64 / 1e9;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let (seconds, rest) = (latencies.sum_ns / 1_000_000_000, latencies.sum_ns % 1_000_000_000);
    let _ = writeln!(out, "{name}_sum{{{labels}}} {seconds}.{rest:09}");
    let _ = writeln!(out, "{name}_count{{{labels}}} {count}");
}
