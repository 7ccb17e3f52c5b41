//! What a server is told.

use std::time::Duration;

use spillway_tls::ServerSettings;

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether and how connections are encrypted.
    pub tls: TlsMode,
    /// Who a peer is that connects by TCP from this host and shows no certificate. `None`: nobody,
    /// so that peers need a certificate.
    pub loopback_name: Option<String>,
    /// Most connections at the same time, those included that have not said who they are.
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
    /// None is.
    Off,
    /// Those are whose peer asks for it.
    Offered(ServerSettings),
    /// All are; a peer gets nothing, not even the names of exports, before it asks for it.
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
