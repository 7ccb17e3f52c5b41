//! The sockets and threads around [`Target`] and [`Connection`](crate::Connection).
//!
//! One thread accepts connections, and each connection has a thread of its own. That thread reads all bytes that have
//! arrived, executes their commands, and sends the answers together: with many commands outstanding, two system calls
//! serve several of them. It moves to the processor where its packets arrive (docs/adr/0020).

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use spillway_serving::{Complaints, ConnectionCounts};
use spillway_tls::ServerSettings;

use crate::error::Error;
use crate::target::Target;

mod driver;
mod open_connections;
mod shared;
mod transport;

use shared::{Shared, event};

/// Stack of a connection's thread.
const STACK_BYTES: usize = 512 << 10;
/// TCP keepalive: after so long without bytes from a host, TCP probes whether it is still there, so often and so many
/// times.
const PROBE_AFTER_S: Duration = Duration::from_secs(30);
const PROBE_EVERY_S: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// A target that listens.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `target` to the hosts that connect to `listener`. With `tls`, each connection uses TLS, and a host is the
    /// client that its certificate names, whatever NVMe Qualified Name it gives.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel refuses a thread or a descriptor.
    pub fn start(
        listener: TcpListener,
        target: Arc<Target>,
        tls: Option<ServerSettings>,
    ) -> Result<Self, Error> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared::new(target, tls)?);
        let acceptor = {
            let shared = Arc::clone(&shared);
            let accept = move || accept(&shared, &listener);
            std::thread::Builder::new().name("nvme-tcp".into()).spawn(accept)?
        };
        Ok(Self { shared, address, acceptor: Some(acceptor) })
    }

    /// The address on which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The target that it serves.
    pub fn target(&self) -> &Arc<Target> {
        &self.shared.target
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.counts().open() as usize
    }

    /// Counts of its connections.
    pub fn counts(&self) -> &Arc<ConnectionCounts> {
        self.shared.connections.counts()
    }

    /// Ends all connections and waits for their threads.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stop();
        if let Some(acceptor) = self.acceptor.take() {
            // The result is an error if the thread panicked; release builds abort at a panic.
            let _ = acceptor.join();
        }
        let threads = self.shared.threads.lock().map(|mut threads| std::mem::take(&mut *threads));
        for thread in threads.unwrap_or_default() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Accepts connections until the server stops.
fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut number = 0;
    let sum_interval = Timespec::try_from(Complaints::SUM_INTERVAL).ok();
    while !shared.is_stopping() {
        let mut fds =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(&shared.stop, PollFlags::IN)];
        let polled = poll(&mut fds, sum_interval.as_ref());
        shared.complaints.sum_up();
        if polled.is_err() {
            continue;
        }
        shared.connections.wait_for_ends(|| shared.is_stopping());
        match listener.accept() {
            Ok((stream, peer)) => {
                number += 1;
                if let Err(error) = take(shared, stream, peer, number)
                    && let Some(others) = shared.connections.refusal_line(shared.now_ms())
                {
                    tracing::warn!(%peer, %error, others, "could not take a connection");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                // Descriptors or memory have run out. They may be available again in a moment.
                tracing::warn!(%error, "could not accept a connection");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Starts the thread of a new connection.
fn take(
    shared: &Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    number: u64,
) -> Result<(), Error> {
    let mut threads = shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
    threads.retain(|thread| !thread.is_finished());
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, PROBE_AFTER_S)?;
    sockopt::set_tcp_keepintvl(&stream, PROBE_EVERY_S)?;
    sockopt::set_tcp_keepcnt(&stream, PROBES)?;
    let wake = Arc::new(event()?);
    shared.connections.enter(number, &stream, peer, shared.now_ms())?;
    let serve = {
        let shared = Arc::clone(shared);
        move || {
            match driver::serve(&shared, stream, wake, (number, peer)) {
                Ok(()) => tracing::debug!(%peer, "connection closed"),
                Err(error @ Error::Stalled { .. }) => {
                    tracing::warn!(%peer, "connection closed: {error}");
                }
                Err(error) if shared.may_complain(peer) => {
                    tracing::info!(%peer, %error, "connection ended");
                }
                Err(_) => {}
            }
            shared.connections.leave(number);
        }
    };
    let thread = std::thread::Builder::new()
        .name("nvme-tcp-host".into())
        .stack_size(STACK_BYTES)
        .spawn(serve);
    threads.push(thread.inspect_err(|_| shared.connections.leave(number))?);
    Ok(())
}
