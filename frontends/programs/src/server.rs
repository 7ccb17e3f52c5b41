//! Accepts and ends connections.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use spillway_platform::priority;
use spillway_platform::sys::peer_credentials;
use spillway_serving::{Complaints, ConnectionCounts, CountedSlots, FLOOD_PAUSE};
use spillway_types::{Peer, Programs, SlotLimits, Whose};
use spillway_wire::programs::{Answer, Reason};

use crate::connection::{Connection, Next};

/// Longest interval of the check for overdue hellos.
const TICK: Duration = Duration::from_secs(1);
/// Most connections that are accepted between two looks at the others.
const ACCEPTED_MAX: u32 = 64;
/// Pause after the server has run out of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Settings of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most connections of all users together.
    pub connections_max: usize,
    /// Time that a supervisor has to send its hello.
    pub hello_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { connections_max: 1024, hello_timeout: Duration::from_secs(5) }
    }
}

/// The server of programs: a thread. Dropping this ends it and disconnects all programs.
#[derive(Debug)]
pub struct Server {
    counts: Arc<ConnectionCounts>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the connections of `listener`, a listening Unix socket of sequential packets.
    ///
    /// # Errors
    /// There are no threads or descriptors left.
    pub fn start(
        listener: OwnedFd,
        programs: Arc<dyn Programs>,
        config: Config,
    ) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let told = stop.try_clone()?;
        let counts = Arc::<ConnectionCounts>::default();
        let slots = CountedSlots::new(SlotLimits::quarters(config.connections_max), counts.clone());
        let event_loop = EventLoop {
            listener,
            stop: told,
            programs,
            connections: Vec::new(),
            slots,
            hello_timeout: config.hello_timeout,
            last: 0,
            complaints: Complaints::new("programs"),
        };
        let thread =
            thread::Builder::new().name("programs".into()).spawn(move || event_loop.run())?;
        Ok(Self { counts, stop, thread: Some(thread) })
    }

    /// Counts of its connections.
    pub const fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.counts
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only this server writes to the eventfd, so its counter has room.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The event loop of the server's thread, and what it owns.
struct EventLoop {
    listener: OwnedFd,
    stop: OwnedFd,
    programs: Arc<dyn Programs>,
    connections: Vec<Connection>,
    slots: CountedSlots,
    hello_timeout: Duration,
    /// Number of the last connection.
    last: u64,
    complaints: Complaints,
}

impl EventLoop {
    fn run(mut self) {
        priority::prefer();
        loop {
            let Some(ready) = self.wait() else { return };
            self.complaints.sum_up();
            let mut at = 0;
            // The connections are in the order of the polled descriptors, so none may be removed before its turn.
            self.connections.retain_mut(|connection| {
                let is_ready = ready.get(at).copied().unwrap_or(false);
                at += 1;
                let next = if is_ready {
                    let next = connection.serve(&*self.programs, self.slots.counts());
                    if connection.program.is_some() {
                        self.slots.prove(connection.number);
                    }
                    next
                } else if connection.is_late(self.hello_timeout) {
                    self.programs.hello_late();
                    Next::End(Some("it sent no hello in time"))
                } else {
                    Next::Stay
                };
                let Next::End(why) = next else { return true };
                self.slots.leave(connection.number);
                let why = why.filter(|_| self.complaints.line(Peer::User(connection.uid())));
                part(connection, why, &*self.programs);
                false
            });
            self.accept();
        }
    }

    /// Waits for messages, at most [`TICK`] or as long as a hello may take. Returns for each connection whether it is
    /// readable; `None` if the server must end.
    fn wait(&self) -> Option<Vec<bool>> {
        let fixed = [&self.stop, &self.listener].map(AsFd::as_fd);
        let sockets = self.connections.iter().map(|connection| connection.socket.as_fd());
        let mut polled: Vec<_> = fixed
            .into_iter()
            .chain(sockets)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let most = Timespec::try_from(self.hello_timeout.min(TICK)).ok();
        match poll(&mut polled, most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "can't wait for programs");
                thread::sleep(SHORTAGE_PAUSE);
            }
        }
        let ready: Vec<_> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        (!ready[0]).then(|| ready[fixed.len()..].to_vec())
    }

    /// Accepts the connections that wait.
    fn accept(&mut self) {
        for _ in 0..ACCEPTED_MAX {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.take(socket),
                Err(Errno::AGAIN) if self.slots.takes_pause() => return thread::sleep(FLOOD_PAUSE),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    if let Some(others) = self.complaints.shortage() {
                        tracing::warn!(%error, others, "a program can't be accepted");
                    }
                    return thread::sleep(SHORTAGE_PAUSE);
                }
            }
        }
    }

    /// Adds a connection. May close an older one that sent no hello.
    fn take(&mut self, socket: OwnedFd) {
        let Ok(peer) = peer_credentials(&socket) else { return };
        self.last += 1;
        let Ok(displaced) = self.slots.enter(self.last, Peer::User(peer.uid)) else {
            let answer = Answer::Refused(Reason::Many).encode();
            // The server does not wait until the program reads it.
            let _ = send(&socket, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            return;
        };
        if let Some(displaced) = displaced {
            self.connections.retain(|connection| connection.number != displaced.number);
            self.slots.leave(displaced.number);
            if self.complaints.line(displaced.peer) {
                tracing::warn!(
                    peer = %Whose::Peer(displaced.peer),
                    "programs: connections without a hello were closed in favour of newer ones"
                );
            }
        }
        self.connections.push(Connection::new(socket, peer, self.last));
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        for connection in &self.connections {
            part(connection, None, &*self.programs);
        }
    }
}

/// Ends the registration of a connection, and logs the reason if there is one.
fn part(connection: &Connection, why: Option<&str>, programs: &dyn Programs) {
    if let Some(why) = why {
        let (uid, pid) = (connection.uid(), connection.pid());
        tracing::warn!(uid, pid, why, "a program is no longer counted");
    }
    if let Some(program) = connection.program {
        programs.leave(program);
    }
}
