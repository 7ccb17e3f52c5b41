//! The listening side: receives peers' messages, and reports this host's spare memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use spillway_connections::{
    ConnectionLimits, ConnectionPermit, Connections, Deadlines, plain_answer,
};
use spillway_serving::{ConnectionCounts, Refusal as Refused};
use spillway_tls::{ServerSettings, name_of};
use spillway_types::SlotLimits;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::{MESSAGES_PATH, SPARE_PATH, Spare};

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Connections of one certificate's name. More are closed.
const CONNECTIONS_NAME_MAX: usize = 8;
/// For the body of a request and its answer.
const REQUEST: Duration = Duration::from_secs(10);

/// Limits for peers.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Connections at a time. A connection is authenticated once its certificate was checked.
    pub connections: ConnectionLimits,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For the requests.
    pub deadlines: Deadlines,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self::of(1024)
    }
}

impl ServerLimits {
    /// The usual limits with so many connections.
    pub const fn of(connections_max: usize) -> Self {
        // The limit for each peer goes by its certificate, because several may share an address.
        let slots = SlotLimits::quarters(connections_max);
        Self {
            connections: ConnectionLimits { slots, of_peer_max: connections_max },
            handshake: Duration::from_secs(5),
            deadlines: Deadlines { head: Duration::from_secs(60), stall: REQUEST },
        }
    }
}

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not a message; why.
    Unreadable(String),
    /// Too many are waiting; the peer may try again.
    Busy,
}

/// The handler of peers' requests.
pub trait Host: Send + Sync + 'static {
    /// Whether a host of this name may lend and borrow. Names are in lower case.
    fn knows(&self, peer: &str) -> bool;

    /// This host's own name, in lower case.
    fn name(&self) -> &str;

    /// Processes a message of `peer`, whose sender and receiver fields were checked.
    ///
    /// # Errors
    /// What is wrong with it.
    fn message(&self, peer: &str, body: &[u8]) -> Result<(), Refusal>;

    /// Bytes that this host would lend now.
    fn spare_bytes(&self) -> u64;
}

/// Serves peers until its task ends. A connection without a known host's certificate only gets 403.
pub async fn serve(
    listener: TcpListener,
    tls: &ServerSettings,
    host: Arc<dyn Host>,
    limits: ServerLimits,
    counts: Arc<ConnectionCounts>,
) {
    let connections = Connections::new("lending", limits.connections, Arc::clone(&counts));
    let counts = Arc::new(Counts { of_names: Mutex::default(), all: counts });
    spillway_connections::accept(listener, connections, |stream, place| {
        // The keys may have been renewed.
        let acceptor = TlsAcceptor::from(tls.config());
        let (counts, host) = (counts.clone(), host.clone());
        async move {
            let ended = connection(stream, acceptor, counts, host, (&place, limits)).await;
            if let Err(reason) = ended {
                tracing::debug!("a peer's connection ended: {reason}");
            }
        }
    })
    .await;
}

/// Connections of each peer.
#[derive(Debug)]
struct Counts {
    of_names: Mutex<HashMap<String, usize>>,
    all: Arc<ConnectionCounts>,
}

/// One of a peer's connections.
struct Counted {
    counts: Arc<Counts>,
    peer: String,
}

impl Counts {
    fn enter(self: Arc<Self>, peer: &str) -> Option<Counted> {
        let mut counts = self.of_names.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(peer.to_owned()).or_default();
        if *count >= CONNECTIONS_NAME_MAX {
            self.all.refuse(Refused::Peer);
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Counted { counts: self, peer: peer.to_owned() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.of_names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

/// The name in the requester's certificate.
#[derive(Clone, Debug)]
struct Peer(Arc<str>);

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    counts: Arc<Counts>,
    host: Arc<dyn Host>,
    (place, limits): (&ConnectionPermit, ServerLimits),
) -> Result<(), String> {
    let stream = timeout(limits.handshake, acceptor.accept(stream)).await;
    let stream = stream.map_err(|_| "no TLS in time")?.map_err(|error| error.to_string())?;
    let name = name_of(stream.get_ref().1).map_err(|error| error.to_string())?;
    let name = name.ok_or("no certificate")?.to_ascii_lowercase();
    let _counted = counts.enter(&name).ok_or_else(|| format!("too many of {name}"))?;
    place.prove();
    let router = router(host).layer(Extension(Peer(name.into())));
    let served = spillway_connections::serve(stream, router, limits.deadlines, plain_answer).await;
    served.map_err(|error| error.to_string())
}

fn router(host: Arc<dyn Host>) -> Router {
    Router::new()
        .route(MESSAGES_PATH, post(message))
        .route(SPARE_PATH, get(spare))
        .layer(DefaultBodyLimit::max(MESSAGE_BYTES_MAX))
        .layer(middleware::from_fn_with_state(host.clone(), admit))
        .with_state(host)
}

/// Admits only known hosts, for a limited time.
async fn admit(
    State(host): State<Arc<dyn Host>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if !host.knows(&peer) {
        let line = format!("{peer} is not a host that lends or borrows here");
        return (StatusCode::FORBIDDEN, line).into_response();
    }
    match timeout(REQUEST, next.run(request)).await {
        Ok(answer) => answer,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// The common fields of all messages.
#[derive(Deserialize)]
struct Addressed {
    from: String,
    to: String,
}

async fn message(
    State(host): State<Arc<dyn Host>>,
    Extension(Peer(peer)): Extension<Peer>,
    body: Bytes,
) -> Result<StatusCode, (StatusCode, String)> {
    let addressed: Addressed = serde_json::from_slice(&body)
        .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    if !addressed.from.eq_ignore_ascii_case(&peer) {
        let line =
            format!("the certificate is that of {peer}, but the message is from another host");
        return Err((StatusCode::FORBIDDEN, line));
    }
    if !addressed.to.eq_ignore_ascii_case(host.name()) {
        let line = format!("this is {}, but the message is for another host", host.name());
        return Err((StatusCode::MISDIRECTED_REQUEST, line));
    }
    match host.message(&peer, &body) {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(Refusal::Unreadable(why)) => Err((StatusCode::BAD_REQUEST, why)),
        Err(Refusal::Busy) => {
            Err((StatusCode::SERVICE_UNAVAILABLE, "too many messages wait".to_owned()))
        }
    }
}

async fn spare(State(host): State<Arc<dyn Host>>) -> Json<Spare> {
    Json(Spare { spare_bytes: host.spare_bytes() })
}
