//! What can go wrong between hosts.

use std::time::Duration;

/// Why a peer was not asked, or gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer can't be reached, or the connection broke.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// HTTP broke off.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The peer's name can't stand in a certificate, or keys can't be used.
    #[error(transparent)]
    Tls(#[from] spillway_tls::Error),
    /// The request can't be written as HTTP.
    #[error("the request is none: {0}")]
    Request(#[from] hyper::http::Error),
    /// There was no answer in time.
    #[error("no answer within {0:?}")]
    Time(Duration),
    /// The answer is longer than is read.
    #[error("an answer of more than {0} bytes")]
    Long(usize),
    /// The answer is not what was asked for.
    #[error("its answer is not understood: {0}")]
    Answer(#[from] serde_json::Error),
    /// The peer said no.
    #[error("it says {0}: {1}")]
    Status(u16, String),
}
