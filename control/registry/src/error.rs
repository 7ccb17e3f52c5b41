//! Errors of the registry.

/// Why a registry does not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is unreachable.
    #[error(transparent)]
    Peer(#[from] spillway_peers::Error),
    /// Its answer is malformed.
    #[error("its answer is not understood: {0}")]
    Answer(#[from] serde_json::Error),
    /// Its answer is unexpected.
    #[error("{0}")]
    Etcd(String),
    /// Keys have changed, and the watch has not reported it.
    #[error("its watch is silent although hosts have changed, as if its connection was cut")]
    Silent,
    /// An invalid endpoint.
    #[error(
        "'{0}' is not an endpoint: write http://ADDRESS:PORT or https://ADDRESS:PORT, with a numeric address"
    )]
    Endpoint(String),
}
