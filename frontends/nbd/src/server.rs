//! The listener, and a thread for each connection.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spillway_block::Exports;
use spillway_platform::priority;
use spillway_serving::{
    CommandKind, Complaints, ConnectionCounts, CountedSlots, FLOOD_PAUSE, Latencies, Refusal,
};
use spillway_types::{Access, Displaced, Peer, Seldom, SlotLimits};

use crate::config::Config;
use crate::connection::{self, Shared};
use crate::error::Error;
use crate::socket::{Listener, Socket};

/// Bytes of a connection's stack. It is locked in memory with the rest of the daemon.
const STACK_BYTES: usize = 256 << 10;
/// Pause after the kernel had no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for connections to answer received requests when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// Longest time that a new connection waits for displaced ones to end.
const ENDS_WAIT_MAX: Duration = Duration::from_secs(1);

/// The kinds of requests.
const REQUESTS: &[CommandKind] = &[
    CommandKind::Read,
    CommandKind::Write,
    CommandKind::Discard,
    CommandKind::Flush,
    CommandKind::Other,
];

/// The open connections.
struct Connections {
    counts: Arc<ConnectionCounts>,
    open: Mutex<Open>,
    /// Notified when a connection ends.
    ended: Condvar,
}

struct Open {
    sockets: HashMap<u64, Arc<Socket>>,
    slots: CountedSlots,
}

impl Connections {
    fn new(connections_max: usize) -> Self {
        let counts = Arc::<ConnectionCounts>::default();
        let slots = CountedSlots::new(SlotLimits::quarters(connections_max), counts.clone());
        let open = Mutex::new(Open { sockets: HashMap::new(), slots });
        Self { counts, open, ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Returns the unidentified connection that it displaced, if any. Displaced connections end soon, so
    /// if too many have not ended, a new connection waits instead of being refused.
    fn begin(
        &self,
        number: u64,
        peer: Peer,
        socket: &Arc<Socket>,
    ) -> Result<Option<Displaced>, Refusal> {
        let waits = |open: &mut Open| open.slots.waits_for_ends();
        let waited = self.ended.wait_timeout_while(self.lock(), ENDS_WAIT_MAX, waits);
        let mut open = waited.unwrap_or_else(PoisonError::into_inner).0;
        let displaced = open.slots.enter(number, peer)?;
        if let Some(socket) = displaced.and_then(|other| open.sockets.get(&other.number)) {
            socket.shutdown(Shutdown::Both);
        }
        open.sockets.insert(number, socket.clone());
        Ok(displaced)
    }

    /// Records that the connection's peer was admitted.
    fn prove(&self, number: u64) {
        self.lock().slots.prove(number);
    }

    /// Whether a user floods the server.
    fn takes_pause(&self) -> bool {
        self.lock().slots.takes_pause()
    }

    fn end(&self, number: u64) {
        let mut open = self.lock();
        open.slots.leave(number);
        open.sockets.remove(&number);
        drop(open);
        self.ended.notify_all();
    }

    fn shutdown_all(&self, how: Shutdown) {
        self.lock().sockets.values().for_each(|socket| socket.shutdown(how));
    }

    /// Waits until no connection is open, or the timeout has passed.
    fn wait_for_none(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut open = self.lock();
        while !open.sockets.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            open = match self.ended.wait_timeout(open, left) {
                Ok((open, _)) => open,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// A listener and its connections. Dropping this ends them.
pub struct Server {
    connections: Arc<Connections>,
    latencies: Arc<Latencies>,
    stopping: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts accepting connections. The listener may come from the service manager.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel has no thread or descriptor left.
    pub fn start(
        listener: Listener,
        access: Arc<dyn Access>,
        exports: Arc<dyn Exports>,
        config: Config,
    ) -> Result<Self, Error> {
        listener.set_nonblocking()?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let connections = Arc::new(Connections::new(config.connections_max));
        let stopping = Arc::<AtomicBool>::default();
        let latencies = Arc::new(Latencies::new(REQUESTS));
        let shared = Shared {
            access,
            exports,
            config,
            complaints: Complaints::new("NBD"),
            latencies: latencies.clone(),
        };
        let acceptor = Acceptor {
            listener,
            shared: Arc::new(shared),
            connections: connections.clone(),
            stopping: stopping.clone(),
            wake: wake.clone(),
        };
        let acceptor = thread::Builder::new()
            .name("nbd-accept".into())
            .stack_size(STACK_BYTES)
            .spawn(move || acceptor.run())?;
        Ok(Self { connections, latencies, stopping, wake, acceptor: Some(acceptor) })
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.lock().sockets.len()
    }

    /// Counts of its connections.
    pub fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.connections.counts
    }

    /// The latencies of its requests.
    pub const fn latencies(&self) -> &Arc<Latencies> {
        &self.latencies
    }
}

impl Drop for Server {
    /// Stops accepting, gives connections at most a second to answer received requests, and ends them.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Fails only if the counter is full, and a full counter wakes the thread as well.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.connections.shutdown_all(Shutdown::Read);
        self.connections.wait_for_none(STOP_GRACE);
        self.connections.shutdown_all(Shutdown::Both);
        self.connections.wait_for_none(STOP_GRACE);
    }
}

/// The state of the thread that accepts connections.
struct Acceptor {
    listener: Listener,
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    stopping: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
}

impl Acceptor {
    fn run(self) {
        priority::prefer();
        let mut number = 0;
        let (began, mut refusals) = (Instant::now(), Seldom::default());
        while !self.stopping.load(Ordering::Acquire) {
            self.shared.complaints.sum_up();
            match self.listener.accept() {
                Ok(socket) => {
                    number += 1;
                    if let Err(error) = self.take_in(number, socket)
                        && let Some(others) = refusals.line(began.elapsed().as_millis() as u64)
                    {
                        tracing::warn!(others, "NBD: {error}");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if let Some(others) = self.shared.complaints.shortage() {
                        tracing::warn!(%error, others, "no NBD connection could be accepted");
                    }
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Waits for a connection or the end of the server, at most [`Complaints::SUM_INTERVAL`].
    fn wait(&self) {
        if self.connections.takes_pause() {
            thread::sleep(FLOOD_PAUSE);
        }
        let mut ready =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&*self.wake, PollFlags::IN)];
        let most = Timespec::try_from(Complaints::SUM_INTERVAL).ok();
        // After an interruption, the loop checks again.
        let _ = poll(&mut ready, most.as_ref());
    }

    /// Starts a connection's thread.
    ///
    /// # Errors
    /// The connection was refused, or it displaced another one.
    fn take_in(&self, number: u64, socket: Socket) -> Result<(), Error> {
        let peer = socket.peer()?;
        let socket = Arc::new(socket);
        let displaced = match self.connections.begin(number, peer, &socket) {
            Ok(displaced) => displaced,
            Err(Refusal::Peer) => return Err(Error::Flood(peer)),
            Err(Refusal::Full | Refusal::Displaced) => {
                return Err(Error::Full { connections_max: self.shared.config.connections_max });
            }
        };
        let (shared, connections) = (self.shared.clone(), self.connections.clone());
        let started = thread::Builder::new()
            .name(format!("nbd-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                priority::prefer_no_longer();
                let admitted = || connections.prove(number);
                if let Err(error) = connection::serve(&socket, peer, &shared, &admitted)
                    && shared.complaints.line(peer)
                {
                    tracing::info!(%error, number, "an NBD connection ended");
                }
                socket.shutdown(Shutdown::Both);
                connections.end(number);
            });
        started.map(drop).inspect_err(|_| self.connections.end(number))?;
        displaced.map_or(Ok(()), |displaced| Err(Error::Displaced(displaced.peer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn whose(gave_way: Option<Displaced>) -> Option<Peer> {
        gave_way.map(|gave_way| gave_way.peer)
    }

    #[test]
    fn newcomers_wait_for_those_that_gave_way_for_a_second_at_most() {
        // Four slots for unidentified connections, one of them for each peer.
        let (connections, peer) = (Connections::new(16), Peer::User(1000));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _other_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Arc::new(Listener::Tcp(listener).accept().unwrap());
        let begin = |number| connections.begin(number, peer, &socket).map(whose);
        assert_eq!((1..=5).map(begin).filter(|gave_way| *gave_way == Ok(Some(peer))).count(), 4);
        thread::scope(|scope| {
            let began = Instant::now();
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                connections.end(1);
            });
            // On a busy machine the other thread may come after that second.
            let begun = (0..5).map(|_| begin(6)).find(Result::is_ok);
            assert_eq!(begun, Some(Ok(Some(peer))), "one that gave way ends late");
            assert!(began.elapsed() >= Duration::from_millis(100));
        });
        assert_eq!(begin(7), Err(Refusal::Full), "none ends");
    }

    #[test]
    fn who_gives_way_is_who_holds_most_and_not_the_newcomer() {
        let connections = Connections::new(16);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _other_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Arc::new(Listener::Tcp(listener).accept().unwrap());
        let begin = |uid| connections.begin(u64::from(uid), Peer::User(uid), &socket).map(whose);
        assert!((1..=4).map(begin).all(|gave_way| gave_way == Ok(None)));
        assert_eq!(begin(5), Ok(Some(Peer::User(1))));
    }
}
