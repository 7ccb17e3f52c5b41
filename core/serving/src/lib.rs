//! What the servers of all protocols share: [`Latencies`] of their commands, and [`Complaints`], which limits log lines
//! about peers.

#![forbid(unsafe_code)]

mod complaints;
mod latency;

pub use complaints::Complaints;
pub use latency::{BOUNDS_NS, CommandKind, Latencies, LatencyHistogram, Recorder};
