//! Metrics of the policy, and of who was not let in.

use crate::metric::{Metric, counter, gauge};

/// How targets are found, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicySample {
    /// The policy's name.
    pub name: &'static str,
    /// Time between two samples of the clients, µs.
    pub interval_us: u64,
    /// smart-alloc: what a target grows or shrinks by, millionths.
    pub step_millionths: Option<u64>,
    /// smart-alloc: what a client may leave unused before its target shrinks, where that was set, bytes.
    pub threshold_bytes: Option<u64>,
    /// utility: what a miss costs, µs.
    pub miss_us: Option<u64>,
}

/// Metrics of the policy.
pub(crate) const POLICY: [Metric<PolicySample>; 5] = [
    gauge("spillway_policy_info", "Always 1. The label `policy` is the policy that sets targets.", |_| Some(1)),
    gauge(
        "spillway_policy_interval_seconds",
        "Time between two samples of the clients.",
        |p: &PolicySample| Some(p.interval_us),
    )
    .in_millionths(),
    gauge(
        "spillway_policy_step_ratio",
        "smart-alloc: the share of the store by which a target grows in an interval, and of itself by which it shrinks.",
        |p: &PolicySample| p.step_millionths,
    )
    .in_millionths(),
    gauge(
        "spillway_policy_threshold_bytes",
        "smart-alloc: what a client may leave unused before its target shrinks; missing if it follows from the step.",
        |p| p.threshold_bytes,
    ),
    gauge("spillway_policy_miss_seconds", "utility: what a miss costs a client.", |p: &PolicySample| p.miss_us)
        .in_millionths(),
];

/// Who was not let in.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusedSample {
    /// Connections of whom no client is configured for.
    pub unknown: u64,
    /// Connections beyond those that their client may have.
    pub at_limit: u64,
    /// Wrong secrets, certificates, passwords and tokens.
    pub authentications: u64,
}

/// Metrics of who was not let in.
pub(crate) const REFUSED: [Metric<RefusedSample>; 3] = [
    counter(
        "spillway_denied_unknown_total",
        "Times that no client was configured for a user, host or certificate that connected; over RESP also before it gives a password.",
        |r| Some(r.unknown),
    ),
    counter(
        "spillway_denied_at_limit_total",
        "Connections refused because their client had all the connections that it may have.",
        |r| Some(r.at_limit),
    ),
    counter(
        "spillway_failed_authentications_total",
        "Wrong secrets and passwords, failed TLS handshakes, and requests over HTTP without a right token.",
        |r| Some(r.authentications),
    ),
];
