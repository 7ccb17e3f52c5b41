//! What a server is told.

use std::time::Duration;

use spillway_store::Lifetime;

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct Config {
    /// What databases promise of their values.
    pub lifetime: Lifetime,
    /// Who a peer is that connects by TCP from this host without TLS. `None`: nobody, until it authenticates.
    pub loopback_name: Option<String>,
    /// Most connections at the same time, those included that have not said who they are.
    pub connections_max: usize,
    /// Time that a peer has to say who it is.
    pub handshake_timeout: Duration,
    /// Longest time in which nothing comes of a command that has begun, or nothing leaves of a reply.
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
