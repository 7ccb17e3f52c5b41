//! Moving a client: its pools as a stream.

use std::io::{self, Read, Write};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::io::{StreamReader, SyncIoBridge};

use crate::parts::{Shared, aside};
use crate::problem::Error;
use crate::types::{Moved, Problem, STREAM_TYPE};

/// Chunks of a body that wait for the peer. With [`CHUNK_BYTES`], this limits the memory of an
/// export.
const CHUNKS_WAITING: usize = 8;
const CHUNK_BYTES: usize = 256 << 10;

/// Most bytes behind the end of a stream, or behind the place at which it is refused, that are read before the answer.
const REST_BYTES_MAX: u64 = 1 << 30;

/// The part of a move.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// Only the flushes since the export.
    #[serde(default)]
    rest: bool,
    /// An import may replace what an earlier one has brought, if nobody has connected since. A client can be exported
    /// although it has moved.
    #[serde(default)]
    again: bool,
}

/// Freezes a client and streams its persistent private pools. If the stream is not read to its end,
/// the client is thawed, unless it was frozen before. With `rest`, only the flushes since the last export. With `again`,
/// also a client that has moved.
#[utoipa::path(
    post,
    path = "/v1/clients/{name}/export",
    operation_id = "export_client",
    tag = "moving",
    params(("name" = String, Path), ("rest" = Option<bool>, Query), ("again" = Option<bool>, Query)),
    responses(
        (status = 200, content_type = "application/vnd.spillway.client", body = Vec<u8>),
        (status = "4XX", body = Problem)
    )
)]
pub(crate) async fn export(
    State(daemon): Shared,
    Path(name): Path<String>,
    part: Result<Query<Part>, QueryRejection>,
) -> Result<impl IntoResponse, Error> {
    let Query(part) = part?;
    let (sender, mut receiver) = mpsc::channel(CHUNKS_WAITING);
    let client_registry = daemon.client_registry.clone();
    let streamed = tokio::task::spawn_blocking(move || {
        let mut sink = Chunks { sender, chunk: Vec::new() };
        let moved = if part.rest {
            client_registry.export_rest(&name, &mut sink)
        } else if part.again {
            client_registry.export_again(&name, &mut sink)
        } else {
            client_registry.export(&name, &mut sink)
        };
        if let Err(error) = moved {
            // An error in the middle truncates the body, which the peer notices.
            let cut = io::Error::other(error.to_string());
            let _ = sink.sender.blocking_send(Err(cut));
            return Err(error);
        }
        Ok(())
    });
    // An error before the first byte becomes an error response.
    let Some(first) = receiver.recv().await else { return Err(Error::Stopping) };
    if first.is_err() {
        streamed.await.map_err(|_| Error::Stopping)??;
    }
    let body = tokio_stream::once(first).chain(ReceiverStream::new(receiver));
    Ok(([(header::CONTENT_TYPE, STREAM_TYPE)], Body::from_stream(body)))
}

/// Collects written bytes into chunks and passes them to the body.
struct Chunks {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.chunk);
        let sent = self.sender.blocking_send(Ok(chunk.into()));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the peer is gone"))
    }
}

/// The body of a request, for a task that may block on it.
pub(crate) fn source_of(body: Body) -> impl Read + Send {
    let stream = body.into_data_stream().map(|chunk| chunk.map_err(io::Error::other));
    SyncIoBridge::new(StreamReader::new(stream))
}

/// Reads a client's exported pools into a client that has none. With `again`, it can have those of an earlier import,
/// if nobody has connected since. With `rest`, the flushes that came after.
#[utoipa::path(
    post,
    path = "/v1/clients/{name}/import",
    operation_id = "import_client",
    tag = "moving",
    params(("name" = String, Path), ("rest" = Option<bool>, Query), ("again" = Option<bool>, Query)),
    request_body(content = Vec<u8>, content_type = "application/vnd.spillway.client"),
    responses((status = 200, body = Moved), (status = "4XX", body = Problem), (status = 507, body = Problem))
)]
pub(crate) async fn import(
    State(daemon): Shared,
    Path(name): Path<String>,
    part: Result<Query<Part>, QueryRejection>,
    body: Body,
) -> Result<Json<Moved>, Error> {
    let Query(part) = part?;
    let mut source = source_of(body);
    let client_registry = daemon.client_registry.clone();
    let moved = aside(move || {
        let moved = if part.rest {
            client_registry.import_rest(&name, &mut source)
        } else if part.again {
            client_registry.import_again(&name, &mut source)
        } else {
            client_registry.import(&name, &mut source)
        };
        // A peer that is still sending would lose the answer.
        if !matches!(moved, Err(spillway_directory::Error::Io(_))) {
            // It may leave.
            let _ = io::copy(&mut source.take(REST_BYTES_MAX), &mut io::sink());
        }
        moved
    });
    let moved = moved.await.map_err(Error::of_body)?;
    Ok(Json(Moved { pools: moved.pools, values: moved.values, flushes: moved.flushes }))
}
