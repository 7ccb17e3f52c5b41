//! The daemon's version.

use crate::metric::{Metric, gauge};

/// The build of the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildSample {
    /// Its version.
    pub version: &'static str,
    /// The commit; empty if unknown.
    pub commit: &'static str,
}

/// The metric of the daemon's build.
pub(crate) const BUILD: [Metric<BuildSample>; 1] = [gauge(
    "spillway_build_info",
    "Always 1. The labels are the daemon's `version` and the `commit` that it was built from.",
    |_| Some(1),
)];
