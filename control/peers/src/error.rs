//! Errors of communication between hosts.

use std::time::Duration;

/// Why a request to a peer failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer is unreachable, or the connection broke.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// HTTP failed.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The peer's name is not valid in a certificate, or keys can't be used.
    #[error(transparent)]
    Tls(#[from] spillway_tls::Error),
    /// The request can't be written as HTTP.
    #[error("invalid request: {0}")]
    Request(#[from] hyper::http::Error),
    /// There was no answer in time.
    #[error("no answer within {0:?}")]
    Time(Duration),
    /// The answer is too long.
    #[error("an answer of more than {0} bytes")]
    Long(usize),
    /// The answer is invalid.
    #[error("its answer is not understood: {0}")]
    Answer(#[from] serde_json::Error),
    /// The peer refused.
    #[error("it says {0}: {1}")]
    Status(u16, String),
}
