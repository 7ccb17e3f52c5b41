//! The socket of a disk, which serves one guest at a time.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::connection::Connection;
use crate::disk::Disk;

/// Longest time that a server that ends waits for a request in progress.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Pause after the server has run out of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// A disk's server: one thread for the socket, and one for each queue in use. Dropping it ends them, except a thread
/// that a guest blocks.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    /// Closed when the socket's thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug)]
struct Shared {
    stopping: AtomicBool,
    wake: OwnedFd,
    /// The present connection.
    stream: Mutex<Option<UnixStream>>,
}

impl Server {
    /// Serves `disk`, with at most `queues` queues, to processes that connect to `listener`. The socket's mode decides
    /// who can connect.
    ///
    /// # Errors
    /// If there are no threads or descriptors left.
    pub fn start(listener: UnixListener, disk: Arc<Disk>, queues: u16) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared =
            Arc::new(Shared { stopping: AtomicBool::new(false), wake, stream: Mutex::default() });
        let (alive, ended) = channel();
        let its = Arc::clone(&shared);
        thread::Builder::new().name("disk-socket".into()).spawn(move || {
            its.accept(&listener, &disk, queues);
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
        if self.ended.recv_timeout(END_PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            tracing::warn!("a guest holds a disk's thread up; it is left behind");
        }
    }
}

impl Shared {
    fn stream(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn accept(&self, listener: &UnixListener, disk: &Arc<Disk>, queues: u16) {
        while !self.stopping() {
            let mut fds =
                [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            // After an interruption, accept finds no connection.
            let _ = poll(&mut fds, None);
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.serve(stream, disk, queues) {
                        tracing::warn!(disk = disk.name(), "the guest was cut off: {error}");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(disk = disk.name(), "can't take a connection: {error}");
                    thread::sleep(SHORTAGE_PAUSE);
                }
            }
        }
    }

    fn serve(&self, stream: UnixStream, disk: &Arc<Disk>, queues: u16) -> Result<(), Error> {
        let broken = Error::SocketBroken;
        stream.set_nonblocking(false).map_err(broken)?;
        *self.stream() = Some(stream.try_clone().map_err(broken)?);
        tracing::info!(disk = disk.name(), "a guest has connected");
        let connection = Arc::new(Mutex::new(Connection::new(Arc::clone(disk), queues)));
        let mut requests = BackendReqHandler::from_stream(stream, connection);
        // The server may have begun to end before `self.stream` was set.
        while !self.stopping() {
            match requests.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected | Error::PartialMessage) => break,
                Err(Error::SocketRetry(_)) => {}
                Err(error) => {
                    *self.stream() = None;
                    return Err(error);
                }
            }
        }
        *self.stream() = None;
        tracing::info!(disk = disk.name(), "the guest has disconnected");
        Ok(())
    }
}
