//! Settings of a server.

use std::time::Duration;

use spillway_tls::ServerSettings;

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether and how connections are encrypted.
    pub tls: TlsMode,
    /// The identity of a TCP peer on this host without a certificate. `None`: peers need a
    /// certificate.
    pub loopback_name: Option<String>,
    /// Most connections at the same time, including unidentified ones.
    pub connections_max: usize,
    /// Time that a peer has to choose its export.
    pub handshake_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tls: TlsMode::Off,
            loopback_name: None,
            connections_max: 256,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// Whether connections are encrypted.
#[derive(Clone, Debug)]
pub enum TlsMode {
    /// Never.
    Off,
    /// If the peer requests it.
    Offered(ServerSettings),
    /// Always. Before TLS a peer gets nothing, not even the names of exports.
    Required(ServerSettings),
}

impl TlsMode {
    pub(crate) const fn settings(&self) -> Option<&ServerSettings> {
        match self {
            Self::Off => None,
            Self::Offered(settings) | Self::Required(settings) => Some(settings),
        }
    }
}
