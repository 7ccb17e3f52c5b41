//! HTTP/1.1 on one connection.

use std::future::{poll_fn, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::invalid::{Answered, HeldAnswer, InvalidAnswer};
use crate::stall::{BodyDeadline, WriteDeadline};

/// Most bytes of a request's head. A longer one is answered with status 431.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// Deadlines of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the start of the connection, or its last answer, to the end of the next request's head. This is also
    /// the longest idle time.
    pub head: Duration,
    /// For the next bytes of a request's body to arrive, and for the peer to receive the next bytes of
    /// an answer.
    pub stall: Duration,
}

/// Serves the requests of a connection with `router`, until it ends or a deadline passes. A request that is not valid
/// HTTP gets the answer of `invalid`, and ends the connection.
///
/// # Errors
/// A deadline passed, the peer does not speak HTTP, or the connection broke.
pub async fn serve<S>(
    stream: S,
    router: Router,
    deadlines: Deadlines,
    invalid: InvalidAnswer,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Deadlines { head, stall } = deadlines;
    let bounded = move |request: Request| async move {
        request.map(|body| Body::new(BodyDeadline::new(body, stall)))
    };
    let answered = Answered::default();
    let note = {
        let answered = answered.clone();
        move |answer: Response| {
            answered.add();
            ready(answer)
        }
    };
    let service =
        router.layer(middleware::map_request(bounded)).layer(middleware::map_response(note));
    let stream = HeldAnswer::new(WriteDeadline::new(stream, stall), answered);
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_header_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let served = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let mut stream = connection.into_parts().io.into_inner();
    // The peer may be gone.
    let _ = match &served {
        Err(error) if error.is_parse() => stream.replace(invalid).await,
        _ => stream.shutdown().await,
    };
    served
}
