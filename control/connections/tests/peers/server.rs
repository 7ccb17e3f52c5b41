//! A server of the tests, and what they say to it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::routing::{get, post};
use axum::{Extension, Router};
use spillway_connections::{
    ConnectionLimits, ConnectionPermit, Connections, Deadlines, Listener, accept, plain_answer,
    serve,
};
use spillway_types::SlotLimits;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// What a test waits for is given up after this. hyper's own deadline for a head is longer.
pub const GIVEN_UP: Duration = Duration::from_secs(20);
/// Of a server whose deadlines play no part.
pub const NEVER: Deadlines =
    Deadlines { head: Duration::from_secs(600), stall: Duration::from_secs(600) };
/// Of a server that bounds nothing.
pub const MANY: ConnectionLimits = ConnectionLimits::halves(1024);
/// Between two chunks of `/slow`.
pub const SLOW: Duration = Duration::from_millis(1200);
/// Chunks of `/slow`.
pub const SLOW_CHUNKS: usize = 3;

/// At most so many connections, and those of one peer: all of them may have proven nothing.
pub fn limits(connections_max: usize, of_peer_max: usize) -> ConnectionLimits {
    let slots = SlotLimits {
        connections_max,
        unproven_max: connections_max,
        unproven_of_peer_max: connections_max,
    };
    ConnectionLimits { slots, of_peer_max }
}

/// Serves over TCP.
pub async fn over_tcp(limits: ConnectionLimits, deadlines: Deadlines) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    start(listener, limits, deadlines);
    address
}

/// Serves whoever connects to a listener.
pub fn start<L>(listener: L, limits: ConnectionLimits, deadlines: Deadlines)
where
    L: Listener<Stream: AsyncRead + AsyncWrite + Unpin> + Sync + 'static,
{
    let connections = Connections::new("test", limits, Arc::default());
    tokio::spawn(accept(listener, connections, move |stream, place| async move {
        let router = router().layer(Extension(Arc::clone(&place)));
        // The tests see it at the other end.
        let _ = serve(stream, router, deadlines, plain_answer).await;
        drop(place);
    }));
}

fn router() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/prove",
            get(|Extension(place): Extension<Arc<ConnectionPermit>>| async move { place.prove() }),
        )
        .route("/length", post(|body: Bytes| async move { body.len().to_string() }))
        .route("/slow", get(slow))
        .route("/endless", get(endless))
}

/// An answer that takes longer than any deadline of the tests, also from one chunk to the next.
async fn slow(_: Request) -> Body {
    let chunks = tokio_stream::iter(0..SLOW_CHUNKS).then(async |_| {
        sleep(SLOW).await;
        Ok::<_, Infallible>("chunk")
    });
    Body::from_stream(Box::pin(chunks))
}

/// An answer without an end. Its last chunk says that nobody wants more.
async fn endless() -> Body {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while sender.send(Ok::<_, Infallible>(vec![7; 64 << 10])).await.is_ok() {}
        ENDED.notify_one();
    });
    Body::from_stream(ReceiverStream::new(receiver))
}

/// `/endless` has ended.
pub static ENDED: tokio::sync::Notify = tokio::sync::Notify::const_new();

pub async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Sends a request whose connection stays.
pub async fn ask(stream: &mut (impl AsyncWrite + Unpin), request: &str) {
    let head = format!("{request} HTTP/1.1\r\nHost: here\r\n\r\n");
    // The other end may have hung up.
    let _ = stream.write_all(head.as_bytes()).await;
}

/// Whether a request is answered with status 200, and its connection stays.
pub async fn is_served(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> bool {
    ask(stream, &format!("GET {path}")).await;
    let mut answer = Vec::new();
    let read = async {
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read_buf(&mut answer).await {
                Ok(length) if length > 0 => {}
                _ => return false,
            }
        }
        answer.starts_with(b"HTTP/1.1 200 ")
    };
    timeout(GIVEN_UP, read).await.expect("it is neither answered nor closed")
}

/// What comes until the server hangs up.
pub async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    let read = timeout(GIVEN_UP, stream.read_to_end(&mut answer)).await;
    // A connection that is reset has ended, too.
    let _ = read.expect("it is not closed");
    String::from_utf8(answer).unwrap()
}
