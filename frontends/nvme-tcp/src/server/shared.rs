//! What the threads of a server share: its target, its clock, and the event that stops them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spillway_serving::Complaints;
use spillway_tls::ServerSettings;
use spillway_types::Peer;

use super::open_connections::OpenConnections;
use super::transport::Transport;
use crate::error::Error;
use crate::target::Target;

/// What the threads of a server share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) target: Arc<Target>,
    pub(super) tls: Option<ServerSettings>,
    pub(super) connections: OpenConnections,
    pub(super) complaints: Complaints,
    /// The threads of connections.
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Readable once the server stops.
    pub(super) stop: OwnedFd,
    stopping: AtomicBool,
    started: Instant,
}

impl Shared {
    pub(super) fn new(target: Arc<Target>, tls: Option<ServerSettings>) -> Result<Self, Error> {
        Ok(Self {
            connections: OpenConnections::new(target.config.connections_max),
            target,
            tls,
            complaints: Complaints::new("NVMe/TCP"),
            threads: Mutex::default(),
            stop: event()?,
            stopping: AtomicBool::new(false),
            started: Instant::now(),
        })
    }

    /// Milliseconds since the server started.
    pub(super) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Makes all threads end.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        signal(&self.stop);
        self.connections.stop_waiting();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether a line about an error of this peer may be logged now.
    pub(super) fn may_complain(&self, peer: SocketAddr) -> bool {
        self.complaints.line(Peer::at(peer.ip()))
    }

    /// Waits until the socket is ready for `events`, at most `wait_ms`.
    pub(super) fn wait(
        &self,
        transport: &Transport,
        events: PollFlags,
        wait_ms: u64,
    ) -> Result<(), Error> {
        let mut fds = [PollFd::new(transport, events), PollFd::new(&self.stop, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(wait_ms))) {
            Ok(0) => Err(Error::Silent),
            Ok(_) if self.is_stopping() => Err(Error::ControllerGone),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// An eventfd, for threads to wait on.
pub(super) fn event() -> Result<OwnedFd, Error> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes an eventfd readable.
pub(super) fn signal(event: &OwnedFd) {
    // A full counter refuses the write, but the eventfd is readable then.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

pub(super) fn timespec(ms: u64) -> Timespec {
    Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 }
}
