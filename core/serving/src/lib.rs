//! What the servers of all protocols share: [`Latencies`] of their commands, and limits of log lines: [`Complaints`]
//! about peers, [`PoolLog`] about pools.

#![forbid(unsafe_code)]

mod complaints;
mod latency;
mod pool_log;

pub use complaints::Complaints;
pub use latency::{BOUNDS_NS, CommandKind, Latencies, LatencyHistogram, Recorder};
pub use pool_log::PoolLog;
