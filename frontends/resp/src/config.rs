//! Settings of a server.

use std::time::Duration;

use spillway_store::Lifetime;

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct Config {
    /// The kind of databases.
    pub lifetime: Lifetime,
    /// The identity of a TCP peer on this host without TLS. `None`: unidentified until it authenticates.
    pub loopback_name: Option<String>,
    /// Most connections at the same time, including unidentified ones.
    pub connections_max: usize,
    /// Time limit for a peer to identify itself.
    pub handshake_timeout: Duration,
    /// Longest time without progress in a received command or a sent reply.
    pub stall_timeout: Duration,
    /// Threads that serve connections.
    pub workers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lifetime: Lifetime::Persistent,
            loopback_name: None,
            connections_max: 4096,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            workers: std::thread::available_parallelism().map_or(1, usize::from).min(8),
        }
    }
}
