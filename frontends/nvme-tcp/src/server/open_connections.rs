//! The open connections of a server: how many there may be, and which one gives way to a new one.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_serving::{ConnectionCounts, CountedSlots};
use spillway_types::{Peer, Seldom, SlotLimits, Whose};

use crate::error::Error;

/// Connections that a host opens before it proves its identity on them: Linux opens all of its I/O queues, of which it
/// gets up to 15, before the first Connect. The admin queue is one more.
const HOST_CONNECTIONS: usize = 16;
/// How long a new connection waits at most for connections that gave way to end.
const ENDS_WAIT_MAX: Duration = Duration::from_secs(1);

/// The open connections, by the number that the server gives each of them.
#[derive(Debug)]
pub(super) struct OpenConnections {
    connections_max: usize,
    counts: Arc<ConnectionCounts>,
    slots: Mutex<Slots>,
    /// Notified when a connection has ended, and when the server stops.
    changed: Condvar,
}

#[derive(Debug)]
struct Slots {
    slots: CountedSlots,
    /// The sockets of connections whose host is not admitted yet: shutting one down ends its connection.
    unproven: HashMap<u64, TcpStream>,
    refusals: Seldom,
}

impl OpenConnections {
    pub(super) fn new(connections_max: usize) -> Self {
        let counts = Arc::<ConnectionCounts>::default();
        let slots = Slots {
            slots: CountedSlots::new(
                SlotLimits::quarters(connections_max).with_peer_least(HOST_CONNECTIONS),
                counts.clone(),
            ),
            unproven: HashMap::new(),
            refusals: Seldom::default(),
        };
        Self { connections_max, counts, slots: Mutex::new(slots), changed: Condvar::new() }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.counts
    }

    /// Gives a new connection a slot. If there is none, an older connection whose host is not admitted yet is ended.
    pub(super) fn enter(
        &self,
        number: u64,
        stream: &TcpStream,
        peer: SocketAddr,
        now_ms: u64,
    ) -> Result<(), Error> {
        let socket = stream.try_clone()?;
        let open = &mut *self.slots();
        let displaced = open
            .slots
            .enter(number, Peer::at(peer.ip()))
            .map_err(|_| Error::Full { connections_max: self.connections_max })?;
        open.unproven.insert(number, socket);
        let Some(displaced) = displaced else { return Ok(()) };
        if let Some(socket) = open.unproven.remove(&displaced.number) {
            // This fails if the connection has already ended.
            let _ = socket.shutdown(Shutdown::Both);
        }
        if let Some(others) = open.refusals.line(now_ms) {
            tracing::warn!(
                peer = %Whose::Peer(displaced.peer),
                others,
                "NVMe/TCP: many connections of hosts that prove nothing: the oldest one was ended"
            );
        }
        Ok(())
    }

    /// Waits while connections that gave way still occupy their slots. They end within moments, so a new connection
    /// waits in the backlog instead of being refused.
    pub(super) fn wait_for_ends(&self, is_stopping: impl Fn() -> bool) {
        let waits = |open: &mut Slots| open.slots.waits_for_ends() && !is_stopping();
        drop(self.changed.wait_timeout_while(self.slots(), ENDS_WAIT_MAX, waits));
    }

    /// Wakes [`Self::wait_for_ends`] because the server stops.
    pub(super) fn stop_waiting(&self) {
        // A thread that checked before the server stopped holds the lock until it waits, so the notification reaches
        // it.
        drop(self.slots());
        self.changed.notify_all();
    }

    /// The connection's host was admitted: from now on the connection gives way to no other.
    pub(super) fn prove(&self, number: u64) {
        let mut open = self.slots();
        open.slots.prove(number);
        open.unproven.remove(&number);
    }

    pub(super) fn leave(&self, number: u64) {
        let mut open = self.slots();
        open.slots.leave(number);
        open.unproven.remove(&number);
        drop(open);
        self.changed.notify_all();
    }

    /// Whether a line about a refused connection may be logged now, and how many were left out since the last one.
    pub(super) fn refusal_line(&self, now_ms: u64) -> Option<u64> {
        self.slots().refusals.line(now_ms)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn no_socket_outlives_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = OpenConnections::new(8);
        for (number, is_proved) in [(1, false), (2, true)] {
            let mut host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, peer) = listener.accept().unwrap();
            open.enter(number, &stream, peer, 0).unwrap();
            if is_proved {
                open.prove(number);
            }
            open.leave(number);
            drop(stream);
            host.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(host.read(&mut [0; 1]).unwrap(), 0, "proved: {is_proved}");
        }
        assert_eq!(open.counts().open(), 0);
    }
}
