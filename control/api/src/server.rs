//! The listening side: every connection within bounds, and every request with who asks.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::ConnectInfo;
use axum::{Extension, Router};
use spillway_connections::{ConnectionLimits, Connections, Deadlines, Listener};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Asker;

/// What a listener's peers may take of the daemon.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Connections at a time.
    pub connections: ConnectionLimits,
    /// How long each may keep the daemon waiting.
    pub deadlines: Deadlines,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: ConnectionLimits::halves(256),
            deadlines: Deadlines {
                // Programs ask every 10, 15, 30 or 60 s: their next request should not meet the end of an idle connection.
                head: Duration::from_secs(20),
                stall: Duration::from_secs(120),
            },
        }
    }
}

/// Serves whoever connects, until the task that it runs in ends. `name` is the listener's, for the log. A connection has proven who it
/// is with the first request that the [service](crate::router) lets in.
pub async fn serve<L>(name: &'static str, listener: L, router: Router, limits: ServerLimits)
where
    L: Listener<Stream: AsyncRead + AsyncWrite + Unpin>,
    for<'a> Asker: From<&'a L::Stream>,
{
    let connections = Connections::new(name, limits.connections);
    spillway_connections::accept(listener, connections, |stream, place| {
        let by = ConnectInfo(Asker::from(&stream));
        let router = router.clone().layer(Extension(by)).layer(Extension(Arc::clone(&place)));
        async move {
            if let Err(error) = spillway_connections::serve(stream, router, limits.deadlines).await
            {
                tracing::debug!("{name}: a connection ended: {error}");
            }
            drop(place);
        }
    })
    .await;
}
