//! Metrics of the RESP front end.

use crate::metric::{Metric, counter, gauge};

/// The RESP front end at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct RespSample {
    /// Open connections.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Commands executed.
    pub commands: u64,
    /// Keys of all databases.
    pub keys: u64,
    /// Those keys that expire.
    pub expiring_keys: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not find their key.
    pub misses: u64,
    /// Keys that have expired.
    pub expired: u64,
}

/// Metrics of the RESP front end.
pub(crate) const RESP: [Metric<RespSample>; 8] = [
    gauge("spillway_resp_connections", "Connections of RESP clients.", |r| Some(r.connections)),
    counter("spillway_resp_connections_total", "Connections accepted.", |r| Some(r.accepted)),
    counter("spillway_resp_commands_total", "Commands executed.", |r| Some(r.commands)),
    gauge(
        "spillway_resp_keys",
        "Keys of all databases; in ephemeral ones also keys whose values have been dropped.",
        |r| Some(r.keys),
    ),
    gauge("spillway_resp_expiring_keys", "Keys with an expiry time.", |r| Some(r.expiring_keys)),
    counter("spillway_resp_hits_total", "Reads of keys that existed.", |r| Some(r.hits)),
    counter("spillway_resp_misses_total", "Reads of keys that did not exist.", |r| Some(r.misses)),
    counter("spillway_resp_expired_keys_total", "Keys removed because they had expired.", |r| {
        Some(r.expired)
    }),
];
