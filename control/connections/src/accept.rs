//! Accepts connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use spillway_types::Peer;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::{ConnectionPermit, Connections};

/// Pause between attempts to accept while they fail, for example because there are no descriptors
/// left.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the number of suppressed lines is logged while no peer connects.
const SUM_INTERVAL: Duration = Duration::from_secs(10);

/// A listener.
pub trait Listener: Send {
    /// A connection.
    type Stream: Send + 'static;

    /// The next connection, and its peer.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, address) = Self::accept(self).await?;
        // Responses are small. If this fails, the connection has ended already.
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

/// Calls `attend` for each admitted connection, on a task of its own, and closes the others. A failed accept ends
/// nothing: its cause is the peer, or a temporary shortage.
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
        // In a flood, displaced connections end before the next one is accepted.
        yield_now().await;
    }
}

/// Whether a peer closed its connection before it was accepted: the next one can be served at once.
fn is_the_peers(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}
