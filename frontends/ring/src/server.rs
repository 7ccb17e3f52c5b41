//! Accepts connections, and ends them.

use std::collections::HashMap;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with,
};
use spillway_platform::priority;
use spillway_platform::sys::{PeerCredentials, peer_credentials};
use spillway_serving::{Complaints, ConnectionCounts, FLOOD_PAUSE, Latencies, PoolLog, Refusal};
use spillway_store::Store;
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Peer};
use spillway_wire::ring::Reason;

use crate::account::Account;
use crate::bound::BoundPools;
use crate::connection::{COMMANDS, Ended, Shared, refuse, serve};
use crate::pollers::Pollers;

/// Length of the listen queue.
const BACKLOG: i32 = 64;
/// Stack of a connection's thread. It is small, because the thread's buffers are on the heap.
pub(crate) const STACK_BYTES: usize = 256 << 10;
/// Pause after the server has run out of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Time between two checks for abandoned pools.
const SWEEP_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Settings of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most connections of all clients together.
    pub connections_max: usize,
    /// Most connections of one user, whichever clients its processes are.
    pub connections_of_user_max: usize,
    /// Time that a client has to send its hello.
    pub hello_timeout: Duration,
    /// Longest time that a thread polls an empty ring before it sleeps.
    pub poll: Duration,
    /// The same for a guest's window, whose wake-ups take longer.
    pub poll_window: Duration,
    /// Most threads that poll at the same time. Each keeps a core busy while its client is active.
    pub pollers_max: u32,
    /// Time for which a bound pool stays after the last connection that bound it has ended, so that its client can
    /// reconnect. A pool that was bound to an earlier server stays six times as long.
    pub bound_grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self::of(512)
    }
}

impl Config {
    /// The usual settings with so many connections: half of them for each user. Half as many pollers as cores, which
    /// leaves cores for clients that poll.
    pub fn of(connections_max: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get) as u32;
        Self {
            connections_max,
            connections_of_user_max: connections_max.div_ceil(2),
            hello_timeout: Duration::from_secs(5),
            poll: Duration::from_micros(200),
            poll_window: Duration::from_millis(5),
            pollers_max: cores / 2,
            bound_grace: Duration::from_secs(10),
        }
    }
}

/// The ring's server: a thread that accepts, and one for each connection.
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) open: Arc<Open>,
    pub(crate) access: Arc<dyn Access>,
    pub(crate) connections_max: usize,
    /// Number of guests' windows attached so far.
    pub(crate) windows: AtomicU64,
    stop: OwnedFd,
    acceptor: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

/// The open connections, by number.
#[derive(Debug, Default)]
pub(crate) struct Open {
    sockets: Mutex<HashMap<u64, OpenConnection>>,
    closed: Condvar,
    pub(crate) counts: Arc<ConnectionCounts>,
}

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    pub(crate) socket: Arc<OwnedFd>,
    /// The user of its process; none if it is a guest's window.
    pub(crate) uid: Option<u32>,
}

impl Open {
    pub(crate) fn sockets(&self) -> MutexGuard<'_, HashMap<u64, OpenConnection>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, number: u64, connection: OpenConnection) {
        let mut sockets = self.sockets();
        sockets.insert(number, connection);
        self.counts.set_open(sockets.len());
    }

    fn remove(&self, number: u64) {
        let mut sockets = self.sockets();
        sockets.remove(&number);
        self.counts.set_open(sockets.len());
        drop(sockets);
        self.closed.notify_all();
    }

    /// Why there is no place for another connection of a user.
    fn is_full_for(&self, uid: u32, config: &Config) -> Option<Refusal> {
        let sockets = self.sockets();
        if sockets.len() >= config.connections_max {
            return Some(Refusal::Full);
        }
        let own = sockets.values().filter(|connection| connection.uid == Some(uid)).count();
        (own >= config.connections_of_user_max).then_some(Refusal::Peer)
    }
}

impl Server {
    /// Binds a socket at `path`, for [`Server::start`]. Replaces the socket of a server that has ended. Every user can
    /// connect; [`Access`] decides who is admitted.
    ///
    /// # Errors
    /// `AddrInUse` if a server listens there; those of the system calls.
    pub fn bind(path: &Path) -> io::Result<OwnedFd> {
        let address = SocketAddrUnix::new(path)?;
        let socket =
            || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let listener = socket()?;
        match bind(&listener, &address) {
            Err(Errno::ADDRINUSE) => {
                if rustix::net::connect(&socket()?, &address) != Err(Errno::CONNREFUSED) {
                    return Err(Errno::ADDRINUSE.into());
                }
                std::fs::remove_file(path)?;
                bind(&listener, &address)?;
            }
            done => done?,
        }
        rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o666))?;
        listen(&listener, BACKLOG)?;
        Ok(listener)
    }

    /// Serves `store` to all admitted clients that connect to `listener`, a listening Unix socket of sequential
    /// packets.
    ///
    /// # Errors
    /// If there are no threads or descriptors left.
    pub fn start(
        listener: OwnedFd,
        store: Arc<Store>,
        access: Arc<dyn Access>,
        config: Config,
    ) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let mut instance = [0; 8];
        rustix::rand::getrandom(&mut instance, rustix::rand::GetRandomFlags::empty())?;
        let bound = BoundPools::new(&store, config.bound_grace)?;
        let shared = Arc::new(Shared {
            store,
            instance: u64::from_ne_bytes(instance),
            account: Account::default(),
            bound,
            pollers: Pollers::new(config.pollers_max),
            poll: config.poll,
            poll_window: config.poll_window,
            latencies: Arc::new(Latencies::new(COMMANDS)),
            pool_log: PoolLog::new("ring", access.clone()),
            hello_timeout: config.hello_timeout,
            stopping: AtomicBool::new(false),
        });
        let complaints = Arc::new(Complaints::new("ring"));
        let open = Arc::new(Open::default());
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let acceptor = Acceptor {
            listener,
            access: access.clone(),
            config,
            shared: shared.clone(),
            open: open.clone(),
            stop: stop.try_clone()?,
            last: 0,
            is_flooded: false,
            complaints,
        };
        let acceptor =
            thread::Builder::new().name("ring-accept".into()).spawn(move || acceptor.run())?;
        Ok(Self {
            shared,
            open,
            access,
            connections_max: config.connections_max,
            windows: AtomicU64::new(0),
            stop,
            acceptor: Some(acceptor),
        })
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.open.sockets().len()
    }

    /// Counts of its connections.
    pub fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.open.counts
    }

    /// The latencies of its commands, one in 64 of which is timed.
    pub fn latencies(&self) -> &Arc<Latencies> {
        &self.shared.latencies
    }
}

impl Drop for Server {
    /// Stops accepting, closes all connections and waits for their threads.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // Only this server writes to the eventfd, so its counter has room.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let mut sockets = self.open.sockets();
        for connection in sockets.values() {
            // The other side may have closed it already.
            let _ = shutdown(&connection.socket, Shutdown::Both);
        }
        while !sockets.is_empty() {
            sockets = self.open.closed.wait(sockets).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The state of the accepting thread.
struct Acceptor {
    listener: OwnedFd,
    access: Arc<dyn Access>,
    config: Config,
    shared: Arc<Shared>,
    open: Arc<Open>,
    stop: OwnedFd,
    /// Number of the last connection.
    last: u64,
    /// A user was refused because of all the connections that this user has, since the thread last waited.
    is_flooded: bool,
    complaints: Arc<Complaints>,
}

impl Acceptor {
    fn run(mut self) {
        priority::prefer();
        let sum_interval = Timespec::try_from(Complaints::SUM_INTERVAL).ok();
        while !self.shared.stopping.load(Ordering::Relaxed) {
            self.complaints.sum_up();
            let bound = &self.shared.bound;
            let waiting = bound.sweep(&self.shared.store, &self.shared.pool_log);
            let mut ready = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(bound.abandoned(), PollFlags::IN),
            ];
            let timeout = if waiting { Some(&SWEEP_INTERVAL) } else { sum_interval.as_ref() };
            // In a flood the next connection is there already.
            let polled = if self.is_flooded { Ok(0) } else { poll(&mut ready, timeout) };
            let accepted = polled.and_then(|_| accept_with(&self.listener, SocketFlags::CLOEXEC));
            match accepted {
                Ok(socket) => self.take(socket),
                Err(Errno::AGAIN) if self.is_flooded => {
                    self.is_flooded = false;
                    thread::sleep(FLOOD_PAUSE);
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    if let Some(others) = self.complaints.shortage() {
                        tracing::warn!(%error, others, "the ring can't accept a connection");
                    }
                    thread::sleep(SHORTAGE_PAUSE);
                }
            }
        }
    }

    /// Admits a connection, and starts its thread.
    fn take(&mut self, socket: OwnedFd) {
        let Ok(PeerCredentials { pid, uid, gid }) = peer_credentials(&socket) else { return };
        if let Some(why) = self.open.is_full_for(uid, &self.config) {
            self.open.counts.refuse(why);
            self.is_flooded |= why == Refusal::Peer;
            if self.complaints.line(Peer::User(uid)) {
                tracing::warn!(uid, pid, "{}", shortage(why));
            }
            return refuse(socket.as_fd(), Reason::Connections);
        }
        let admitted = match self.access.admit(Identity::Peer { uid, gid, pid }) {
            Ok(admitted) => admitted,
            Err(why) => {
                if self.complaints.line(Peer::User(uid)) {
                    tracing::warn!(uid, pid, %why, "a client of the ring is turned away");
                }
                return refuse(socket.as_fd(), reason(why));
            }
        };
        self.last += 1;
        let socket = Arc::new(socket);
        let connection = OpenConnection { socket: socket.clone(), uid: Some(uid) };
        self.open.insert(self.last, connection);
        let seat = Seat {
            number: self.last,
            client: admitted.client,
            open: self.open.clone(),
            access: self.access.clone(),
        };
        let (shared, complaints) = (self.shared.clone(), self.complaints.clone());
        let thread = thread::Builder::new().name(format!("ring-{}", self.last));
        let refused = socket.clone();
        let started = thread.stack_size(STACK_BYTES).spawn(move || {
            priority::prefer_no_longer();
            let seat = seat;
            attend(&shared, &socket, admitted, (uid, pid), &complaints, &*seat.access);
        });
        if let Err(error) = started {
            if let Some(others) = self.complaints.shortage() {
                tracing::warn!(%error, others, "there is no thread for a connection of the ring");
            }
            refuse(refused.as_fd(), Reason::Failed);
        }
    }
}

/// The log line of a refused connection.
const fn shortage(why: Refusal) -> &'static str {
    match why {
        Refusal::Peer => "a user has all the connections of the ring that one user may have",
        Refusal::Full | Refusal::Displaced => "the ring has all the connections that it may have",
    }
}

pub(crate) fn reason(why: Denied) -> Reason {
    match why {
        Denied::Unknown => Reason::Unknown,
        Denied::Connections => Reason::Connections,
    }
}

/// The main function of a connection's thread.
fn attend(
    shared: &Shared,
    socket: &OwnedFd,
    admitted: Admitted,
    (uid, pid): (u32, i32),
    complaints: &Complaints,
    access: &dyn Access,
) {
    let client = admitted.client.0;
    tracing::debug!(client, pid, "a ring is open");
    let Err(ended) = serve(shared, socket, admitted) else {
        tracing::debug!(client, pid, "a ring is closed");
        return;
    };
    if matches!(ended, Ended::Late) {
        access.handshake_late();
    }
    if !complaints.line(Peer::User(uid)) {
        return;
    }
    match ended {
        Ended::Late => {
            tracing::warn!(client, pid, "a ring is closed: its client sent no hello in time");
        }
        Ended::Refused(reason) => {
            tracing::warn!(client, pid, why = reason.text(), "a client gets no ring");
        }
        Ended::Protocol(why) => {
            let line = "a ring is closed: its client broke the protocol";
            tracing::warn!(client, pid, why, "{line}");
        }
        Ended::Failed(error) => {
            tracing::warn!(client, pid, %error, "a ring is closed");
        }
    }
}

/// A connection's entry among the open ones. It is dropped when the connection's thread ends or can't be started.
pub(crate) struct Seat {
    pub(crate) number: u64,
    pub(crate) client: ClientId,
    pub(crate) open: Arc<Open>,
    pub(crate) access: Arc<dyn Access>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.access.leave(self.client);
        self.open.remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_places_of_its_own_beside_windows_and_other_users() {
        let config = Config { connections_max: 5, connections_of_user_max: 2, ..Config::default() };
        let open = Open::default();
        let enter = |number, uid| {
            let socket = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
            open.insert(number, OpenConnection { socket, uid });
        };
        enter(1, None);
        enter(2, None);
        enter(3, Some(7));
        assert_eq!(open.is_full_for(7, &config), None, "windows are no connections of a user");
        enter(4, Some(7));
        assert_eq!(open.is_full_for(7, &config), Some(Refusal::Peer));
        assert_eq!(open.is_full_for(8, &config), None);
        enter(5, Some(8));
        assert_eq!(open.is_full_for(8, &config), Some(Refusal::Full));
    }
}
