//! The listening side: limits connections, and attaches the peer to each request.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::ConnectInfo;
use axum::{Extension, Router};
use spillway_connections::{ConnectionLimits, Connections, Deadlines, Listener};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Asker;

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
