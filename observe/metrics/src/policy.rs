//! Metrics of the policy, and of refused connections.

use crate::metric::{Metric, counter, gauge};

/// The policy that sets targets, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicySample {
    /// The policy's name.
    pub name: &'static str,
    /// Time between two samples of the clients, µs.
    pub interval_us: u64,
    /// smart-alloc: the step of a target, millionths.
    pub step_millionths: Option<u64>,
    /// smart-alloc: unused memory of a client above which its target shrinks, if set, bytes.
    pub threshold_bytes: Option<u64>,
    /// utility: the cost of a miss, µs.
    pub miss_us: Option<u64>,
    /// utility: the part of the store that is shared evenly, per cent.
    pub fairness_percent: Option<u64>,
}

/// Metrics of the policy.
pub(crate) const POLICY: [Metric<PolicySample>; 6] = [
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
        "smart-alloc: memory that a client may leave unused before its target shrinks; missing if it follows from the step.",
        |p| p.threshold_bytes,
    ),
    gauge("spillway_policy_miss_seconds", "utility: the cost of a miss for a client.", |p: &PolicySample| p.miss_us)
        .in_millionths(),
    gauge(
        "spillway_policy_fairness_ratio",
        "utility: the part of the store that is shared evenly among the clients that can use it.",
        |p: &PolicySample| p.fairness_percent.map(|percent| percent * 10_000),
    )
    .in_millionths(),
];

/// Refused connections and data.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusedSample {
    /// Connections for which no client is configured.
    pub unknown: u64,
    /// Connections beyond their client's limit.
    pub at_limit: u64,
    /// Wrong secrets, certificates, passwords and tokens.
    pub authentications: u64,
    /// Connections whose peer did not complete the handshake in time.
    pub late_handshakes: u64,
    /// PDUs of NVMe/TCP whose data did not match its digest; none without NVMe/TCP.
    pub damaged_pdus: Option<u64>,
}

/// Metrics of refused connections and data.
pub(crate) const REFUSED: [Metric<RefusedSample>; 5] = [
    counter(
        "spillway_denied_unknown_total",
        "Connections of users, hosts and certificates for which no client is configured; over RESP also those that have not given a password yet.",
        |r| Some(r.unknown),
    ),
    counter(
        "spillway_denied_at_limit_total",
        "Connections refused because their client was at its limit of connections.",
        |r| Some(r.at_limit),
    ),
    counter(
        "spillway_failed_authentications_total",
        "Wrong secrets and passwords, failed TLS handshakes, and requests over HTTP without a right token.",
        |r| Some(r.authentications),
    ),
    counter(
        "spillway_late_handshakes_total",
        "Connections closed because their peer did not complete the handshake in time: the hello of the ring and of programs, TLS, the choice of an export over NBD, Connect over NVMe/TCP, a password over RESP.",
        |r| Some(r.late_handshakes),
    ),
    counter(
        "spillway_nvme_tcp_damaged_pdus_total",
        "PDUs from NVMe/TCP hosts whose data did not match its digest. Their commands failed, and the hosts send them again.",
        |r| r.damaged_pdus,
    ),
];
