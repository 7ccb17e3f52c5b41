//! The listening side: limits connections, and attaches the peer to each request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::connect_info::ConnectInfo;
use axum::{Extension, Router};
use spillway_connections::{ConnectionLimits, Connections, Deadlines, Listener};
use spillway_types::Seldom;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Asker, problem};

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Connections at a time.
    pub connections: ConnectionLimits,
    /// Deadlines of a connection.
    pub deadlines: Deadlines,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: ConnectionLimits::halves(256),
            deadlines: Deadlines {
                // Programs poll every 10, 15, 30 or 60 s: an idle connection should survive until their next request.
                head: Duration::from_secs(20),
                stall: Duration::from_secs(120),
            },
        }
    }
}

/// Serves connections until its task ends. `name` is the listener's, for the log. A connection counts as authenticated
/// after the first request that the [service](crate::router) permits.
pub async fn serve<L>(name: &'static str, listener: L, router: Router, limits: ServerLimits)
where
    L: Listener<Stream: AsyncRead + AsyncWrite + Unpin>,
    for<'a> Asker: From<&'a L::Stream>,
{
    let connections = Connections::new(name, limits.connections);
    let complaints = Arc::new(Complaints::new());
    spillway_connections::accept(listener, connections, |stream, place| {
        let by = ConnectInfo(Asker::from(&stream));
        let complaints = Arc::clone(&complaints);
        let router = router.clone().layer(Extension(by)).layer(Extension(Arc::clone(&place)));
        async move {
            let served =
                spillway_connections::serve(stream, router, limits.deadlines, problem::invalid)
                    .await;
            match served {
                Err(error) if error.is_parse() => complaints.note(name, by.0, &error),
                Err(error) => tracing::debug!("{name}: a connection ended: {error}"),
                Ok(()) => {}
            }
            drop(place);
        }
    })
    .await;
}

/// Lines of the log about requests that are not valid HTTP. Any peer can cause as many as it likes.
struct Complaints {
    began: Instant,
    lines: Mutex<Seldom>,
}

impl Complaints {
    fn new() -> Self {
        Self { began: Instant::now(), lines: Mutex::default() }
    }

    fn note(&self, name: &str, by: Asker, error: &dyn std::error::Error) {
        let now_ms = self.began.elapsed().as_millis() as u64;
        let line = self.lines.lock().unwrap_or_else(PoisonError::into_inner).line(now_ms);
        if let Some(others) = line {
            tracing::info!(%by, others, "{name}: a request is not valid HTTP: {error}");
        }
    }
}
