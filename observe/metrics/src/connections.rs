//! Metrics of each front end's connections.

use crate::metric::{Metric, counter, gauge};

/// The connections of a front end at one moment.
#[derive(Clone, Debug, Default)]
pub struct ConnectionSample {
    /// The front end's name.
    pub front_end: &'static str,
    /// Connections that are open, whether their peer is admitted or not.
    pub open: u64,
    /// Connections that were refused or closed for want of slots, by the reason's name.
    pub refused: Vec<(&'static str, u64)>,
}

/// Metrics of each front end's connections.
pub(crate) const CONNECTION: [Metric<u64>; 1] = [gauge(
    "spillway_connections",
    "Open connections of the front end, with those whose peer is not admitted yet.",
    |open| Some(*open),
)];

/// Metrics of refused connections, for each front end and reason.
pub(crate) const CONNECTION_REFUSED: [Metric<u64>; 1] = [counter(
    "spillway_connections_refused_total",
    "Connections that the front end refused or closed because it has bounds on them.",
    |refused| Some(*refused),
)];
