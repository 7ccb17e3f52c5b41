//! The server: it listens, and starts the threads that serve connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt;
use spillway_platform::priority;
use spillway_platform::sys::{PeerCredentials, peer_credentials};
use spillway_serving::{Complaints, FLOOD_PAUSE};
use spillway_store::Store;
use spillway_tls::ServerSettings;
use spillway_types::{Access, Peer, Whose};

use crate::config::Config;
use crate::connection::Connection;
use crate::error::Error;
use crate::session::{Origin, Session};
use crate::shared::{Described, Shared, Statistics};
use crate::sweep::{self, Sweep};
use crate::transport::{Socket, Transport};
use crate::worker::{Accepted, Inbox, Worker, unix_ms};

/// Bytes of a thread's stack. It is small because the daemon locks all its memory.
const STACK_BYTES: usize = 256 << 10;
/// Pause after the kernel had no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Idle time before the first keepalive probe of a TCP connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// A source of connections.
#[derive(Debug)]
pub enum Listener {
    /// Processes of this host.
    Unix(UnixListener),
    /// The network, with TLS if there are settings for it.
    Tcp(TcpListener, Option<ServerSettings>),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener, _) => listener.as_fd(),
        }
    }
}

/// Where a connection comes from.
enum Source {
    Process(PeerCredentials),
    Address(SocketAddr),
}

impl Source {
    fn peer(&self) -> Peer {
        match self {
            Self::Process(peer) => Peer::User(peer.uid),
            Self::Address(address) => Peer::at(address.ip()),
        }
    }

    /// The address of the peer, as `CLIENT LIST` has it.
    fn address(&self) -> String {
        match self {
            Self::Process(_) => "unix".into(),
            Self::Address(address) => address.to_string(),
        }
    }
}

impl Listener {
    fn accept(&self) -> Result<(Socket, Source), Error> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                let peer = peer_credentials(&stream)?;
                Ok((Socket::Unix(stream), Source::Process(peer)))
            }
            Self::Tcp(listener, _) => {
                let (stream, address) = listener.accept()?;
                prepare(&stream)?;
                Ok((Socket::Tcp(stream), Source::Address(address)))
            }
        }
    }

    const fn tls(&self) -> Option<&ServerSettings> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(_, tls) => tls.as_ref(),
        }
    }
}

/// Listeners and their connections. A drop ends them.
pub struct Server {
    shared: Arc<Shared>,
    inboxes: Arc<[Arc<Inbox>]>,
    stops: Arc<Stops>,
    threads: Vec<JoinHandle<()>>,
}

/// The signal that ends the acceptors and the sweeper.
#[derive(Debug)]
struct Stops {
    is_so: AtomicBool,
    wake: OwnedFd,
    lock: Mutex<()>,
    rung: Condvar,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens the databases of an earlier daemon, then starts to serve the connections of the listeners.
    ///
    /// # Errors
    /// The kernel has no thread or descriptor left.
    pub fn start(
        listeners: Vec<Listener>,
        store: Arc<Store>,
        access: Arc<dyn Access>,
        config: Config,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(store, access, config));
        shared.keyspaces.reopen();
        let inboxes: Result<Vec<_>, _> =
            (0..shared.config.workers.max(1)).map(|_| Inbox::new().map(Arc::new)).collect();
        let stops = Arc::new(Stops {
            is_so: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            lock: Mutex::new(()),
            rung: Condvar::new(),
        });
        let mut server = Self { shared, inboxes: inboxes?.into(), stops, threads: Vec::new() };
        for (number, inbox) in server.inboxes.clone().iter().enumerate() {
            let worker = Worker::new(Arc::clone(&server.shared), Arc::clone(inbox))?;
            server.spawn(format!("resp-{number}"), move || worker.run())?;
        }
        for listener in listeners {
            let acceptor = Acceptor::new(listener, &server)?;
            server.spawn("resp-accept".into(), move || acceptor.run())?;
        }
        let (shared, stops) = (Arc::clone(&server.shared), Arc::clone(&server.stops));
        server.spawn("resp-expiry".into(), move || stops.sweep(&shared))?;
        Ok(server)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The counters of the server.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// The state that the connections share.
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Stops {
    /// Sweeps until the server stops.
    fn sweep(&self, shared: &Shared) {
        let mut sweep = Sweep::default();
        let mut locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_so.load(Ordering::Acquire) {
            sweep.go_on(&shared.keyspaces, unix_ms());
            locked = match self.rung.wait_timeout(locked, sweep::PAUSE) {
                Ok((locked, _)) => locked,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn ring(&self) {
        let locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_so.store(true, Ordering::Release);
        drop(locked);
        self.rung.notify_all();
        // A write fails only if the eventfd's counter is full. The eventfd is readable then.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Server {
    /// Stops the listeners and ends all connections. Commands that have begun are completed.
    fn drop(&mut self) {
        self.stops.ring();
        self.inboxes.iter().for_each(|inbox| inbox.stop());
        for thread in self.threads.drain(..) {
            // A thread that panicked has written a message already.
            let _ = thread.join();
        }
    }
}

/// The thread that accepts connections.
struct Acceptor {
    listener: Listener,
    shared: Arc<Shared>,
    inboxes: Arc<[Arc<Inbox>]>,
    stops: Arc<Stops>,
}

impl Acceptor {
    fn new(listener: Listener, server: &Server) -> io::Result<Self> {
        match &listener {
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
            Listener::Tcp(listener, _) => listener.set_nonblocking(true)?,
        }
        let (shared, inboxes) = (Arc::clone(&server.shared), Arc::clone(&server.inboxes));
        Ok(Self { listener, shared, inboxes, stops: Arc::clone(&server.stops) })
    }

    fn run(&self) {
        priority::prefer();
        let complaints = &self.shared.complaints;
        while !self.stops.is_so.load(Ordering::Acquire) {
            match self.accept() {
                Ok(None) => {}
                Ok(Some(peer)) => {
                    if complaints.line(peer) {
                        let (most, peer) = (self.shared.config.connections_max, Whose::Peer(peer));
                        tracing::warn!(
                            %peer,
                            most,
                            "RESP: too many connections: one was refused, or gave way"
                        );
                    }
                }
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if let Some(others) = complaints.shortage() {
                        tracing::warn!(%error, others, "no RESP connection could be accepted");
                    }
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Waits for a connection, or for the stop of the server, at most [`Complaints::SUM_INTERVAL`].
    fn wait(&self) {
        if self.shared.places.takes_pause() {
            thread::sleep(FLOOD_PAUSE);
        }
        let mut ready = [
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&self.stops.wake, PollFlags::IN),
        ];
        // The loop checks again, also after an interruption.
        let most = Timespec::try_from(Complaints::SUM_INTERVAL).ok();
        let _ = poll(&mut ready, most.as_ref());
        self.shared.complaints.sum_up();
    }

    /// Accepts the next connection. Gives its peer if it was refused, or that of the connection which it replaced.
    fn accept(&self) -> Result<Option<Peer>, Error> {
        let (socket, source) = self.listener.accept()?;
        let peer = source.peer();
        let id = 1 + self.shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new(socket);
        let Ok(gave_way) = self.shared.places.enter(id, peer, &socket) else {
            // The peer gets the error if the socket takes it at once.
            let _ = rustix::io::write(&*socket, b"-ERR max number of clients reached\r\n");
            return Ok(Some(peer));
        };
        let begun = self.begin(id, &socket, &source).inspect_err(|_| self.shared.places.leave(id));
        let accepted = begun?;
        let count = |inbox: &Arc<Inbox>| inbox.count.load(Ordering::Relaxed);
        if let Some(idlest) = self.inboxes.iter().min_by_key(|inbox| count(inbox)) {
            idlest.push(accepted);
        }
        Ok(gave_way)
    }

    /// The state of a connection that has a slot.
    fn begin(&self, id: u64, socket: &Arc<Socket>, source: &Source) -> Result<Accepted, Error> {
        let addresses = (source.address(), socket.local_address()?);
        let described =
            Described { version: 2, began_ms: unix_ms(), addresses, ..Described::default() };
        let tls = self.listener.tls();
        let origin = match *source {
            Source::Process(peer) => {
                Origin::Process { uid: peer.uid, gid: peer.gid, pid: peer.pid }
            }
            Source::Address(address) => {
                let is_local = tls.is_none() && address.ip().to_canonical().is_loopback();
                let name = self.shared.config.loopback_name.clone().filter(|_| is_local);
                name.map_or(Origin::Stranger, Origin::Name)
            }
        };
        let transport = Transport::new(Arc::clone(socket), tls)?;
        let connection = Connection::new(Session::new(id, origin, described));
        Ok(Accepted { transport, connection, peer: source.peer() })
    }
}

/// Sets the options of a TCP socket.
fn prepare(stream: &TcpStream) -> Result<(), Error> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    Ok(())
}
