//! The listening side: limits connections, and attaches the peer to each request.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::connect_info::ConnectInfo;
use axum::{Extension, Router};
use spillway_connections::{ConnectionLimits, ConnectionPermit, Connections, Deadlines, Listener};
use spillway_serving::ConnectionCounts;
use spillway_tls::ServerSettings;
use spillway_types::{Access, Seldom};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::{Asker, problem};

/// The first byte of a peer that begins with TLS: a record of the handshake (RFC 8446, section 5.1).
const TLS_HANDSHAKE: [u8; 1] = [22];

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Connections at a time.
    pub connections: ConnectionLimits,
    /// For the TLS handshake, of listeners inside TLS.
    pub handshake: Duration,
    /// Deadlines of a connection.
    pub deadlines: Deadlines,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self::of(256)
    }
}

/// Connections that an operator can open before a request on them is read: that many commands may start at once, also
/// where descriptors are short.
const COMMANDS_AT_ONCE: usize = 16;

impl ServerLimits {
    /// The usual limits with so many connections.
    #[must_use]
    pub fn of(connections_max: usize) -> Self {
        let usual = ConnectionLimits::halves(connections_max);
        let slots = usual.slots.with_peer_least(COMMANDS_AT_ONCE);
        Self {
            connections: ConnectionLimits { slots, ..usual },
            handshake: Duration::from_secs(5),
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
pub async fn serve<L>(
    name: &'static str,
    listener: L,
    router: Router,
    limits: ServerLimits,
    counts: Arc<ConnectionCounts>,
) where
    L: Listener<Stream: AsyncRead + AsyncWrite + Unpin>,
    for<'a> Asker: From<&'a L::Stream>,
{
    let server = Arc::new(Server::new(name, router, limits));
    spillway_connections::accept(listener, server.connections(counts), |stream, place| {
        let by = Asker::from(&stream);
        let server = Arc::clone(&server);
        async move { server.requests(stream, by, &place).await }
    })
    .await;
}

/// Serves connections inside TLS, as [`serve`] does otherwise. Keys that were renewed apply to new connections.
/// `access` counts handshakes that fail.
pub async fn serve_tls(
    name: &'static str,
    listener: TcpListener,
    (tls, access): (ServerSettings, Arc<dyn Access>),
    router: Router,
    limits: ServerLimits,
    counts: Arc<ConnectionCounts>,
) {
    let server = Arc::new(Server::new(name, router, limits));
    spillway_connections::accept(listener, server.connections(counts), |stream, place| {
        let by = Asker::from(&stream);
        let server = Arc::clone(&server);
        let acceptor = TlsAcceptor::from(tls.config());
        let access = Arc::clone(&access);
        async move {
            match handshake(stream, &acceptor, limits.handshake).await {
                Ok(Begun::Tls(stream)) => server.requests(*stream, by, &place).await,
                Ok(Begun::Plain(stream)) => server.refuse_plain(stream, by).await,
                // Whoever only tests whether the port is open.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                Err(error) => {
                    match error.kind() {
                        ErrorKind::InvalidData => access.authentication_failed(),
                        ErrorKind::TimedOut => access.handshake_late(),
                        // The peer has ended it.
                        _ => {}
                    }
                    server.complain(by, "the TLS handshake failed", &error);
                }
            }
        }
    })
    .await;
}

/// How a peer begins.
enum Begun {
    Tls(Box<TlsStream<TcpStream>>),
    /// Not with TLS.
    Plain(TcpStream),
}

async fn handshake(stream: TcpStream, acceptor: &TlsAcceptor, time: Duration) -> io::Result<Begun> {
    let begun = async {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first != TLS_HANDSHAKE {
            return Ok(Begun::Plain(stream));
        }
        Ok(Begun::Tls(Box::new(acceptor.accept(stream).await?)))
    };
    let late = |_| io::Error::new(ErrorKind::TimedOut, format!("not complete within {time:?}"));
    timeout(time, begun).await.map_err(late)?
}

/// What the connections of a listener share.
struct Server {
    name: &'static str,
    router: Router,
    limits: ServerLimits,
    began: Instant,
    /// Limits the lines of the log about peers that send no valid requests: any peer can cause as many as it likes.
    lines: Mutex<Seldom>,
}

impl Server {
    fn new(name: &'static str, router: Router, limits: ServerLimits) -> Self {
        Self { name, router, limits, began: Instant::now(), lines: Mutex::default() }
    }

    fn connections(&self, counts: Arc<ConnectionCounts>) -> Arc<Connections> {
        Connections::new(self.name, self.limits.connections, counts)
    }

    async fn requests<S>(&self, stream: S, by: Asker, place: &Arc<ConnectionPermit>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.router.clone().layer(Extension(ConnectInfo(by)));
        let router = router.layer(Extension(Arc::clone(place)));
        self.answer(stream, router, self.limits.deadlines, by).await;
    }

    /// Answers a peer that sends plain HTTP where TLS is needed.
    async fn refuse_plain(&self, stream: TcpStream, by: Asker) {
        let router = Router::new().fallback(async || problem::Error::NeedsTls);
        let head = self.limits.handshake;
        self.answer(stream, router, Deadlines { head, ..self.limits.deadlines }, by).await;
    }

    async fn answer<S>(&self, stream: S, router: Router, deadlines: Deadlines, by: Asker)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match spillway_connections::serve(stream, router, deadlines, problem::invalid).await {
            Err(error) if error.is_parse() => {
                self.complain(by, "a request is not valid HTTP", &error);
            }
            Err(error) => tracing::debug!("{}: a connection ended: {error}", self.name),
            Ok(()) => {}
        }
    }

    fn complain(&self, by: Asker, what: &str, error: &dyn std::error::Error) {
        let now_ms = self.began.elapsed().as_millis() as u64;
        let line = self.lines.lock().unwrap_or_else(PoisonError::into_inner).line(now_ms);
        if let Some(others) = line {
            tracing::info!(%by, others, "{}: {what}: {error}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_can_start_several_commands_at_once_also_where_descriptors_are_short() {
        let of_peer = |connections_max| {
            let limits = ServerLimits::of(connections_max).connections;
            assert_eq!(limits.slots.connections_max, connections_max);
            (limits.slots.unproven_of_peer_max, limits.slots.unproven_max, limits.of_peer_max)
        };
        assert_eq!(of_peer(256), (16, 64, 128));
        assert_eq!(of_peer(48), (16, 16, 24));
        assert_eq!(of_peer(8), (4, 4, 4));
    }
}
