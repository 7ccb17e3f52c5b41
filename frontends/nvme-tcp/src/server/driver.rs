//! The thread of one connection: its socket, around a [`Connection`].

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::shared::{Shared, signal, timespec};
use super::transport::Transport;
use crate::connection::{Connection, PDU_BYTES_MAX};
use crate::error::Error;
use crate::output::Output;

/// Bytes read at once, at most.
const INPUT_BYTES: usize = 2 * PDU_BYTES_MAX;
/// How often a connection's thread checks where its packets arrive: once in so many wakeups.
const FOLLOW_EVERY: u32 = 64;

/// Serves a connection until the host or the server ends it. `wake` makes its thread poll the [`Connection`].
pub(super) fn serve(
    shared: &Shared,
    stream: TcpStream,
    wake: Arc<OwnedFd>,
    (number, peer): (u64, SocketAddr),
) -> Result<(), Error> {
    let transport = handshake(shared, stream)?;
    Driver::new(shared, transport, wake, (number, peer))?.run()
}

/// Performs the TLS handshake, if the server uses TLS.
fn handshake(shared: &Shared, stream: TcpStream) -> Result<Transport, Error> {
    let Some(settings) = &shared.tls else { return Ok(Transport::plain(stream)) };
    let mut transport = Transport::encrypted(stream, settings)?;
    let until_ms = shared.now_ms() + shared.target.config.handshake_timeout_ms;
    while !transport.handshake().inspect_err(|error| shared.target.tls_failed(error))? {
        let left_ms = until_ms.saturating_sub(shared.now_ms());
        let ready = if transport.wants_write() { PollFlags::OUT } else { PollFlags::IN };
        let waited = shared.wait(&transport, ready, left_ms);
        waited.inspect_err(|error| shared.target.tls_failed(error))?;
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
    /// The bytes of the input that the connection has not taken yet.
    start: usize,
    end: usize,
    out: Output,
    wakes: u32,
    number: u64,
    peer: SocketAddr,
    /// Whether the server knows that the host was admitted.
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
        let connection =
            Connection::new(Arc::clone(&shared.target), local, name, shared.now_ms(), waker);
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

    fn run(mut self) -> Result<(), Error> {
        let end = self.serve();
        if end.is_err() {
            // The output may end with a PDU that tells the host the reason. Whether it receives it changes nothing.
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
            self.execute()?;
            self.follow_packets();
        }
        Ok(())
    }

    /// Moves this thread to the processor where the connection's packets arrive. A host that waits for each answer then
    /// does not wait for a second processor to wake. The kernel moves the thread away again if that processor is busy.
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

    /// Waits for bytes from the host, for the waker, or for the connection's deadline. True if
    /// [`Connection::poll`] is to be called.
    fn sleep(&self) -> Result<bool, Error> {
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
            // The deadline holds for a host that never stops sending, too.
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                let now_ms = self.shared.now_ms();
                Ok(until_ms.is_some_and(|until| now_ms >= until))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Executes all commands that have arrived, and sends the answers.
    fn execute(&mut self) -> Result<(), Error> {
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
            // Before the answer is sent: a host that knows it was admitted must not lose its connection to a newer one.
            if !self.is_proven && self.connection.is_admitted() {
                self.is_proven = true;
                self.shared.connections.prove(self.number);
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
        // Behind the remaining bytes there must be room for the longest PDU.
        if self.start > INPUT_BYTES - PDU_BYTES_MAX {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        Ok(())
    }

    /// Sends the whole output.
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

    /// Waits until the socket takes more bytes, because the host has received some.
    fn wait_for_room(&self) -> Result<(), Error> {
        let timeout_ms = self.shared.target.config.send_timeout_ms;
        self.shared.wait(&self.transport, PollFlags::OUT, timeout_ms)
    }
}

fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
