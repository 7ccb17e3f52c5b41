//! What program the daemon is.

use crate::metric::{Metric, gauge};

/// Of what the daemon was built.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildSample {
    /// Its version.
    pub version: &'static str,
    /// The commit; empty where it was not known.
    pub commit: &'static str,
}

/// The metric of the daemon's program.
pub(crate) const BUILD: [Metric<BuildSample>; 1] = [gauge(
    "spillway_build_info",
    "Always 1. The labels are the daemon's `version` and the `commit` that it was built from.",
    |_| Some(1),
)];
