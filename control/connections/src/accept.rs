//! Takes connections in.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use spillway_types::Peer;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::{ConnectionPermit, Connections};

/// Between two attempts to accept while none succeeds, as when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// How often lines that were left out are counted in the log, where nobody connects.
const SUM_INTERVAL: Duration = Duration::from_secs(10);

/// What peers connect to.
pub trait Listener: Send {
    /// A connection.
    type Stream: Send + 'static;

    /// The next connection, and where it comes from.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, address) = Self::accept(self).await?;
        // Answers are small; if this fails, the connection has ended already.
        let _ = stream.set_nodelay(true);
        Ok((stream, Peer::at(address.ip())))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = Self::accept(self).await?;
        let uid = stream.peer_cred()?.uid();
        Ok((stream, Peer::User(uid)))
    }
}

/// Has `attend` serve each connection that there is a place for, on a task of its own, and closes the others. A failure to
/// accept ends nothing: it comes from the peer, or from a shortage that passes.
pub async fn accept<L, F, S>(listener: L, connections: Arc<Connections>, attend: F)
where
    L: Listener,
    F: Fn(L::Stream, Arc<ConnectionPermit>) -> S,
    S: Future<Output = ()> + Send + 'static,
{
    loop {
        connections.sum_up();
        let (stream, peer) = match timeout(SUM_INTERVAL, listener.accept()).await {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) if is_the_peers(&error) => continue,
            Ok(Err(error)) => {
                connections.failed(&error);
                sleep(PAUSE).await;
                continue;
            }
            Err(_) => continue,
        };
        if let Some(place) = connections.enter(peer) {
            let place = Arc::new(place);
            let task = tokio::spawn(attend(stream, Arc::clone(&place)));
            place.runs_in(task.abort_handle());
        }
        // In a flood, those that gave way end before the next one is taken in.
        yield_now().await;
    }
}

/// Whether a peer hung up before it was accepted: the next one may be served at once.
fn is_the_peers(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}
