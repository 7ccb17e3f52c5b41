//! What can go wrong while hosts are looked for.

/// Why a registry does not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be asked.
    #[error(transparent)]
    Peer(#[from] spillway_peers::Error),
    /// It says something that is not understood.
    #[error("its answer is not understood: {0}")]
    Answer(#[from] serde_json::Error),
    /// It says something that it should not.
    #[error("{0}")]
    Etcd(String),
    /// An endpoint that is none.
    #[error(
        "'{0}' is no endpoint: write http://ADDRESS:PORT or https://ADDRESS:PORT, with a numeric address"
    )]
    Endpoint(String),
}
