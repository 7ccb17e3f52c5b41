//! The socket of a disk, which serves one guest at a time.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spillway_platform::sys::peer_credentials;
use spillway_serving::Complaints;
use spillway_types::Peer;
use vhost::vhost_user::Error;

use crate::attachment::Occupied;
use crate::connection::Connection;
use crate::disk::Disk;
use crate::resumed;

/// Longest time that a server that ends waits for a request in progress, and a new guest for one of the former guest.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a connection, after which lines that were left out are summed up.
const SUM_INTERVAL: Timespec =
    Timespec { tv_sec: Complaints::SUM_INTERVAL.as_secs() as i64, tv_nsec: 0 };
/// Pause after the server has run out of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// A disk's server: one thread for the socket, one for the connection, and one for each queue in use. Dropping it ends
/// them, except a thread that a guest blocks.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    /// Closed when the socket's thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<Disk>,
    /// Most queues of a guest.
    queues: u16,
    stopping: AtomicBool,
    wake: OwnedFd,
    /// The present connection.
    stream: Mutex<Option<UnixStream>>,
    /// Notified when the present connection has ended, and when the server begins to end.
    changed: Condvar,
    /// A QEMU that is refused tries again every second.
    complaints: Complaints,
}

impl Server {
    /// Serves `disk`, with at most `queues` queues, to processes that connect to `listener`. The socket's mode decides
    /// who can connect. While a guest is connected, every other connection is closed and logged.
    ///
    /// # Errors
    /// If there are no threads or descriptors left.
    pub fn start(listener: UnixListener, disk: Arc<Disk>, queues: u16) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            disk,
            queues,
            stopping: AtomicBool::new(false),
            wake,
            stream: Mutex::default(),
            changed: Condvar::new(),
            complaints: Complaints::new("vhost-user-blk"),
        });
        let (alive, ended) = channel();
        let its = Arc::clone(&shared);
        thread::Builder::new().name("disk-socket".into()).spawn(move || {
            its.accept(&listener);
            drop(alive);
        })?;
        Ok(Self { shared, ended })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Fails only if the counter is full, and a full counter wakes the thread as well.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        if let Some(stream) = &*self.shared.stream() {
            // Fails if the stream is closed already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        self.shared.changed.notify_all();
        if self.ended.recv_timeout(END_PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            tracing::warn!("a guest holds a disk's thread up; it is left behind");
        }
    }
}

impl Shared {
    fn stream(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        let mut guest = None;
        while !self.stopping() {
            let mut fds =
                [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            // After an interruption, accept finds no connection.
            let _ = poll(&mut fds, Some(&SUM_INTERVAL));
            self.complaints.sum_up();
            let admitted = listener.accept().and_then(|(stream, _)| self.admit(stream));
            match admitted {
                Ok(Some(thread)) => guest = Some(thread),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(disk = self.disk.name(), "can't take a connection: {error}");
                    thread::sleep(SHORTAGE_PAUSE);
                }
            }
        }
        // An earlier guest's thread has ended before the last one's began.
        guest.map(JoinHandle::join);
    }

    /// Serves a connection on a thread of its own. Closes it instead if the disk is occupied.
    fn admit(self: &Arc<Self>, stream: UnixStream) -> io::Result<Option<JoinHandle<()>>> {
        stream.set_nonblocking(false)?;
        let present = stream.try_clone()?;
        self.wait_for_former();
        if let Err(occupied) = self.disk.guest.connect() {
            self.refuse(&stream, occupied);
            return Ok(None);
        }
        *self.stream() = Some(present);
        let its = Arc::clone(self);
        let served = thread::Builder::new().name("disk-guest".into()).spawn(move || {
            let refused = its.serve(stream);
            its.leave(refused);
        });
        if served.is_err() {
            self.leave(None);
        }
        served.map(Some)
    }

    /// Waits while the former guest, which has closed its connection, still has a request in progress.
    fn wait_for_former(&self) {
        let stream = self.stream();
        let is_leaving = |stream: &mut Option<UnixStream>| {
            stream.as_ref().is_some_and(has_left) && !self.stopping()
        };
        // Whoever still occupies the disk after that is a guest, and the new connection is refused.
        drop(self.changed.wait_timeout_while(stream, END_PATIENCE, is_leaving));
    }

    fn refuse(&self, stream: &UnixStream, why: Occupied) {
        self.disk.counters.refused_guests.add(1);
        let Ok(peer) = peer_credentials(stream) else { return };
        if self.complaints.line(Peer::User(peer.uid)) {
            let present = self.stream().as_ref().and_then(|it| peer_credentials(it).ok());
            let advice = match why {
                Occupied::Guest => ": give each guest a disk of its own",
                _ => "",
            };
            tracing::warn!(
                disk = self.disk.name(),
                process = peer.pid,
                guest = present.map(|present| present.pid),
                "a second connection was refused: the disk is occupied, {why}{advice}"
            );
        }
    }

    /// Serves a connection until it ends. Returns the reason if it was ended for one.
    fn serve(&self, stream: UnixStream) -> Option<String> {
        let disk = self.disk.name();
        tracing::info!(disk, "a guest has connected");
        let connection = Connection::new(Arc::clone(&self.disk), self.queues);
        let connection = Arc::new(Mutex::new(connection));
        let state = || connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests = match resumed::handler(stream, Arc::clone(&connection)) {
            Ok(handler) => handler,
            Err(error) => {
                tracing::warn!(disk, "can't serve a connection: {error}");
                return None;
            }
        };
        // The server may have begun to end before `self.stream` was set.
        while !self.stopping() {
            match requests.handle_request() {
                Ok(()) => self.disk.guest.uses(state().has_queues()),
                Err(Error::Disconnected | Error::PartialMessage) => break,
                Err(Error::SocketRetry(_)) => {}
                Err(error) => {
                    tracing::warn!(disk, "the guest was cut off: {error}");
                    return Some(state().take_refusal().unwrap_or_else(|| error.to_string()));
                }
            }
        }
        tracing::info!(disk, "the guest has disconnected");
        None
    }

    /// Frees the disk for the next connection.
    fn leave(&self, refused: Option<String>) {
        let mut stream = self.stream();
        *stream = None;
        self.disk.guest.disconnect(refused);
        drop(stream);
        self.changed.notify_all();
    }
}

/// Whether the peer has closed its end.
fn has_left(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().intersects(closed)
}
