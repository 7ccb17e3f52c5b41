//! The driver: sockets and threads around [`Target`] and [`Connection`].
//!
//! A thread accepts; each connection has a thread of its own. It reads as much as has come, carries out all
//! of it, and sends the answers together, so that at depth many commands share two system calls. It moves to
//! the processor where its packets come in (docs/adr/0020).

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use spillway_tls::ServerSettings;
use spillway_types::{ConnectionSlots, Peer, Seldom, SlotLimits, SlotsFull};

use crate::connection::{Connection, PDU_BYTES_MAX};
use crate::error::Error;
use crate::output::Output;
use crate::target::Target;

mod complaints;
mod transport;

use complaints::Complaints;
use transport::Transport;

/// Bytes read at once, at most.
const INPUT_BYTES: usize = 2 * PDU_BYTES_MAX;
/// Stack of a connection's thread.
const STACK_BYTES: usize = 512 << 10;
/// Each so many times that it was awake, a connection's thread looks where its packets come in.
const FOLLOW_EVERY: u32 = 64;
/// A host that says nothing is asked by TCP whether it is there, after so long and so often.
const PROBE_AFTER_S: Duration = Duration::from_secs(30);
const PROBE_EVERY_S: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// Time between two looks for what the log was not told.
const SUM_INTERVAL: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// How long newcomers wait at most for connections that gave way to end.
const ENDS_WAIT_MAX: Duration = Duration::from_secs(1);

/// A target that listens.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: Arc<Target>,
    tls: Option<ServerSettings>,
    started: Instant,
    stopping: AtomicBool,
    /// Woken when the server stops.
    stop: OwnedFd,
    open: Mutex<Open>,
    /// Rung when a connection has ended, and when the server stops.
    ended: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    complaints: Complaints,
}

/// The connections there are.
#[derive(Debug)]
struct Open {
    slots: ConnectionSlots,
    /// Of those whose host has not been let in, what ends them.
    unproven: HashMap<u64, TcpStream>,
    refusals: Seldom,
}

impl Server {
    /// Serves `target` to those who connect to `listener`: inside TLS, if there are settings for it. Then
    /// hosts are the clients that their certificates name, whatever NVMe Qualified Name they give.
    ///
    /// # Errors
    /// [`Error::Io`] when threads or descriptors are refused.
    pub fn start(
        listener: TcpListener,
        target: Arc<Target>,
        tls: Option<ServerSettings>,
    ) -> Result<Self, Error> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let limits = SlotLimits::quarters(target.config.connections_max);
        let open = Open {
            slots: ConnectionSlots::new(limits),
            unproven: HashMap::new(),
            refusals: Seldom::default(),
        };
        let shared = Arc::new(Shared {
            target,
            tls,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            stop: event()?,
            open: Mutex::new(open),
            ended: Condvar::new(),
            threads: Mutex::default(),
            complaints: Complaints::default(),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            let accept = move || accept(&shared, &listener);
            std::thread::Builder::new().name("nvme-tcp".into()).spawn(accept)?
        };
        Ok(Self { shared, address, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it serves.
    pub fn target(&self) -> &Arc<Target> {
        &self.shared.target
    }

    /// Connections there are.
    pub fn connections(&self) -> usize {
        self.shared.open().slots.open()
    }

    /// Ends all connections and waits for their threads.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        signal(&self.shared.stop);
        // Under the lock, so that nobody misses it who has just seen that nothing stops.
        drop(self.shared.open());
        self.shared.ended.notify_all();
        if let Some(acceptor) = self.acceptor.take() {
            // A thread that panicked has ended the process.
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

impl Shared {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection its place. One whose host has not been let in may lose its own for that.
    fn enter(&self, number: u64, stream: &TcpStream, peer: SocketAddr) -> Result<(), Error> {
        let ends = stream.try_clone()?;
        let now_ms = self.now_ms();
        let open = &mut *self.open();
        let displaced = open.slots.enter(number, Peer::at(peer.ip())).map_err(|SlotsFull| {
            Error::Full { connections_max: self.target.config.connections_max }
        })?;
        open.unproven.insert(number, ends);
        let Some(other) = displaced.and_then(|other| open.unproven.remove(&other)) else {
            return Ok(());
        };
        // It may have ended by itself.
        let _ = other.shutdown(Shutdown::Both);
        if let Some(others) = open.refusals.line(now_ms) {
            let peer = other.peer_addr().ok();
            tracing::warn!(
                ?peer,
                others,
                "NVMe/TCP: many connections of hosts that prove nothing: the oldest one was ended"
            );
        }
        Ok(())
    }

    /// Connections that gave way end within moments; who comes meanwhile waits in the backlog rather than be refused.
    fn wait_for_ends(&self) {
        let waits = |open: &mut Open| open.slots.waits_for_ends() && !self.is_stopping();
        drop(self.ended.wait_timeout_while(self.open(), ENDS_WAIT_MAX, waits));
    }

    /// The connection's host was let in.
    fn prove(&self, number: u64) {
        let mut open = self.open();
        open.slots.prove(number);
        open.unproven.remove(&number);
    }

    fn leave(&self, number: u64) {
        let mut open = self.open();
        open.slots.leave(number);
        open.unproven.remove(&number);
        drop(open);
        self.ended.notify_all();
    }

    /// Whether a line about what a host did wrong may be written now.
    fn may_complain(&self, peer: SocketAddr) -> bool {
        self.complaints.line(Peer::at(peer.ip()), self.now_ms())
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until the socket is ready for what `events` say.
    fn wait(&self, transport: &Transport, events: PollFlags, wait_ms: u64) -> Result<(), Error> {
        let mut fds = [PollFd::new(transport, events), PollFd::new(&self.stop, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(wait_ms))) {
            Ok(0) => Err(Error::Silent),
            Ok(_) if self.is_stopping() => Err(Error::ControllerGone),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A descriptor to sleep on.
fn event() -> Result<OwnedFd, Error> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Wakes whoever sleeps on it.
fn signal(event: &OwnedFd) {
    // Full means that it is awake already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut number = 0;
    while !shared.is_stopping() {
        let mut fds =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(&shared.stop, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&SUM_INTERVAL));
        shared.complaints.sum_up(shared.now_ms());
        if polled.is_err() {
            continue;
        }
        shared.wait_for_ends();
        match listener.accept() {
            Ok((stream, peer)) => {
                number += 1;
                if let Err(error) = take(shared, stream, peer, number)
                    && let Some(others) = shared.open().refusals.line(shared.now_ms())
                {
                    tracing::warn!(%peer, %error, others, "could not take a connection");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                // Out of descriptors or memory: others may give some back.
                tracing::warn!(%error, "could not accept a connection");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Starts a connection's thread.
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
    shared.enter(number, &stream, peer)?;
    let serve = {
        let shared = Arc::clone(shared);
        move || {
            let end = greet(&shared, stream)
                .and_then(|transport| Driver::new(&shared, transport, wake, (number, peer)))
                .and_then(Driver::run);
            match end {
                Ok(()) => tracing::debug!(%peer, "connection closed"),
                Err(error @ Error::Stalled { .. }) => {
                    tracing::warn!(%peer, "connection closed: {error}");
                }
                Err(error) if shared.may_complain(peer) => {
                    tracing::info!(%peer, %error, "connection ended");
                }
                Err(_) => {}
            }
            shared.leave(number);
        }
    };
    let thread = std::thread::Builder::new()
        .name("nvme-tcp-host".into())
        .stack_size(STACK_BYTES)
        .spawn(serve);
    threads.push(thread.inspect_err(|_| shared.leave(number))?);
    Ok(())
}

/// Makes TLS's handshake, where there is TLS.
fn greet(shared: &Shared, stream: TcpStream) -> Result<Transport, Error> {
    let Some(settings) = &shared.tls else { return Ok(Transport::plain(stream)) };
    let mut transport = Transport::encrypted(stream, settings)?;
    let until_ms = shared.now_ms() + shared.target.config.handshake_timeout_ms;
    while !transport.handshake().inspect_err(|error| shared.target.tls_failed(error))? {
        let left_ms = until_ms.saturating_sub(shared.now_ms());
        let ready = if transport.wants_write() { PollFlags::OUT } else { PollFlags::IN };
        shared.wait(&transport, ready, left_ms)?;
    }
    Ok(transport)
}

/// A connection and its socket.
struct Driver<'a> {
    shared: &'a Shared,
    transport: Transport,
    wake: Arc<OwnedFd>,
    connection: Connection,
    input: Box<[u8]>,
    /// What of the input was not taken.
    start: usize,
    end: usize,
    out: Output,
    wakes: u32,
    number: u64,
    peer: SocketAddr,
    /// Whether its host is known to have been let in.
    is_proven: bool,
}

impl<'a> Driver<'a> {
    fn new(
        shared: &'a Shared,
        transport: Transport,
        wake: Arc<OwnedFd>,
        (number, peer): (u64, SocketAddr),
    ) -> Result<Self, Error> {
        let waker = Arc::clone(&wake);
        let waker = Arc::new(move || signal(&waker));
        let mut transport = transport;
        let name = transport.name().inspect_err(|_| transport.shut())?;
        let local = transport.local()?;
        let connection = shared.target.accept(local, name, shared.now_ms(), waker);
        Ok(Self {
            shared,
            transport,
            wake,
            connection,
            input: vec![0; INPUT_BYTES].into(),
            start: 0,
            end: 0,
            out: Output::default(),
            wakes: 0,
            number,
            peer,
            is_proven: false,
        })
    }

    /// Serves until the host or the server ends the connection.
    fn run(mut self) -> Result<(), Error> {
        let end = self.serve();
        if end.is_err() {
            // The host is told why, if it listens.
            let _ = self.send();
        }
        self.transport.shut();
        end
    }

    fn serve(&mut self) -> Result<(), Error> {
        while !self.shared.is_stopping() {
            let woken = self.sleep()?;
            if woken {
                self.connection.poll(self.shared.now_ms(), &mut self.out)?;
                self.send()?;
            }
            match self.transport.read(&mut self.input[self.end..]) {
                Ok(0) => return Ok(()),
                Ok(bytes) => self.end += bytes,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error.into()),
            }
            self.carry_out()?;
            self.follow_packets();
        }
        Ok(())
    }

    /// Has this thread run on the processor where the connection's packets come in, so that a host which waits for each answer
    /// waits for no other processor to wake. The kernel moves it away again when that one is busy.
    fn follow_packets(&mut self) {
        self.wakes = self.wakes.wrapping_add(1);
        if !self.wakes.is_multiple_of(FOLLOW_EVERY) {
            return;
        }
        let (Some(there), Ok(allowed)) = (self.transport.processor(), sched_getaffinity(None))
        else {
            return;
        };
        if there == sched_getcpu() || there >= CpuSet::MAX_CPU || !allowed.is_set(there) {
            return;
        }
        let mut alone = CpuSet::new();
        alone.set(there);
        if sched_setaffinity(None, &alone).is_ok()
            && let Err(error) = sched_setaffinity(None, &allowed)
        {
            tracing::warn!(%error, "a connection's thread stays on processor {there}");
        }
    }

    /// Waits for the host, for others, or for the time. Whether there is something to do besides what
    /// the host sends.
    fn sleep(&mut self) -> Result<bool, Error> {
        let now_ms = self.shared.now_ms();
        let until_ms = self.connection.deadline_ms(now_ms);
        let wait_ms = until_ms.map(|until| until.saturating_sub(now_ms));
        let wait_ms = if self.transport.may_hold_more() { Some(0) } else { wait_ms };
        let timeout = wait_ms.map(timespec);
        let mut fds = [
            PollFd::new(&self.transport, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            PollFd::new(&self.shared.stop, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Ok(true),
            Ok(_) if !fds[1].revents().is_empty() => {
                let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                Ok(true)
            }
            // A host that never stops sending does not put the time off.
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                let now_ms = self.shared.now_ms();
                Ok(until_ms.is_some_and(|until| now_ms >= until))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Carries out all that came.
    fn carry_out(&mut self) -> Result<(), Error> {
        loop {
            let now_ms = self.shared.now_ms();
            let input = &self.input[self.start..self.end];
            let taken = self.connection.receive(now_ms, input, &mut self.out);
            if let Some(complaint) = self.connection.complaint()
                && self.shared.may_complain(self.peer)
            {
                tracing::info!(peer = %self.peer, "{complaint}");
            }
            let taken = taken?;
            self.start += taken;
            if self.start == self.end {
                self.start = 0;
                self.end = 0;
            }
            // Before the host hears that it was let in: from then on its connection gives way to nobody.
            if !self.is_proven && self.connection.is_admitted() {
                self.is_proven = true;
                self.shared.prove(self.number);
            }
            let waited = !self.out.pending().is_empty();
            self.send()?;
            if taken == 0 && !waited {
                break;
            }
            if self.start == self.end && !self.connection.sends_more() {
                break;
            }
        }
        // The longest PDU has room behind what is left.
        if self.start > INPUT_BYTES - PDU_BYTES_MAX {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        Ok(())
    }

    /// Sends all that is to be sent.
    fn send(&mut self) -> Result<(), Error> {
        while !self.out.pending().is_empty() {
            match self.transport.write(self.out.pending()) {
                Ok(bytes) => self.out.sent(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_for_room()?,
                Err(error) => return Err(error.into()),
            }
        }
        loop {
            match self.transport.flush() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_for_room()?,
                flushed => return Ok(flushed?),
            }
        }
    }

    /// Waits until the host receives something.
    fn wait_for_room(&self) -> Result<(), Error> {
        let timeout_ms = self.shared.target.config.send_timeout_ms;
        self.shared.wait(&self.transport, PollFlags::OUT, timeout_ms)
    }
}

fn timespec(ms: u64) -> Timespec {
    Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 }
}

fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
