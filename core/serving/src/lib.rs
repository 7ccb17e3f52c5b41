//! What the servers of all protocols share: [`Latencies`] of their commands, [`CountedSlots`] for connections, and limits
//! of log lines: [`Complaints`] about peers, [`PoolLog`] about pools.

#![forbid(unsafe_code)]

mod complaints;
mod connections;
mod flood;
mod latency;
mod pool_log;

pub use complaints::Complaints;
pub use connections::{ConnectionCounts, CountedSlots, Refusal};
pub use flood::FLOOD_PAUSE;
pub use latency::{BOUNDS_NS, CommandKind, Latencies, LatencyHistogram, Recorder};
pub use pool_log::PoolLog;
