//! The places of connections: who has one, and who gives way or is refused when there are too many.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_types::{ConnectionSlots, Peer, Seldom, SeldomOfPeers, SlotLimits, Whose};
use tokio::task::AbortHandle;

/// Bounds on the connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// All of them, and those that have proven nothing: see [`ConnectionSlots`].
    pub slots: SlotLimits,
    /// Those of one peer, whatever it has proven. Whoever has a token can't take all places.
    pub of_peer_max: usize,
}

impl ConnectionLimits {
    /// Half of the places for each peer; a quarter for connections that have proven nothing, and a quarter of that for each
    /// peer.
    pub const fn halves(connections_max: usize) -> Self {
        Self {
            slots: SlotLimits::quarters(connections_max),
            of_peer_max: connections_max.div_ceil(2),
        }
    }
}

/// The connections of a listener.
#[derive(Debug)]
pub struct Connections {
    /// What listens, for the log.
    listener: &'static str,
    limits: ConnectionLimits,
    began: Instant,
    open: Mutex<Open>,
    lines: Mutex<Lines>,
}

#[derive(Debug)]
struct Open {
    next: u64,
    slots: ConnectionSlots,
    /// Those that have not ended, also if they gave way.
    tasks: HashMap<u64, Task>,
}

#[derive(Debug)]
struct Task {
    peer: Peer,
    /// None until it runs.
    handle: Option<AbortHandle>,
}

#[derive(Debug, Default)]
struct Lines {
    of_peers: SeldomOfPeers,
    failures: Seldom,
}

/// A connection's place, which is free again when this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    connections: Arc<Connections>,
    number: u64,
}

impl Connections {
    /// No connections yet. The log names the listener.
    pub fn new(listener: &'static str, limits: ConnectionLimits) -> Arc<Self> {
        let slots = ConnectionSlots::new(limits.slots);
        Arc::new(Self {
            listener,
            limits,
            began: Instant::now(),
            open: Mutex::new(Open { next: 0, slots, tasks: HashMap::new() }),
            lines: Mutex::default(),
        })
    }

    /// Takes a place for a connection that has come; none if there is none for it. An older connection that has proven
    /// nothing may end for it.
    pub(crate) fn enter(self: &Arc<Self>, peer: Peer) -> Option<ConnectionPermit> {
        let mut open = self.open();
        let own = open.tasks.values().filter(|task| task.peer == peer).count();
        let number = open.next;
        let entered =
            if own < self.limits.of_peer_max { open.slots.enter(number, peer).ok() } else { None };
        let Some(gave_way) = entered else {
            drop(open);
            self.complain(peer, "no place for one more connection: it is closed");
            return None;
        };
        open.next += 1;
        open.tasks.insert(number, Task { peer, handle: None });
        let loser = gave_way.and_then(|loser| {
            let task = open.tasks.get(&loser)?;
            task.handle.as_ref().inspect(|handle| handle.abort());
            Some(task.peer)
        });
        drop(open);
        if let Some(loser) = loser {
            self.complain(loser, "a connection that had proven nothing is closed for a newer one");
        }
        Some(ConnectionPermit { connections: Arc::clone(self), number })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lines(&self) -> (MutexGuard<'_, Lines>, u64) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        (lines, self.began.elapsed().as_millis() as u64)
    }

    fn complain(&self, peer: Peer, what: &str) {
        let (mut lines, now_ms) = self.lines();
        if lines.of_peers.line(peer, now_ms) {
            tracing::warn!(peer = %Whose::Peer(peer), "{}: {what}", self.listener);
        }
    }

    /// Says how many lines were left out in times that are over.
    pub(crate) fn sum_up(&self) {
        let (mut lines, now_ms) = self.lines();
        while let Some((peer, left_out)) = lines.of_peers.left_out(now_ms) {
            tracing::warn!(%peer, left_out, "{}: more lines like the last ones of this peer", self.listener);
        }
    }

    /// No connection could be accepted.
    pub(crate) fn failed(&self, error: &io::Error) {
        let (mut lines, now_ms) = self.lines();
        if let Some(others) = lines.failures.line(now_ms) {
            tracing::warn!(%error, others, "{}: no connection could be accepted", self.listener);
        }
    }
}

impl ConnectionPermit {
    /// The connection's peer has proven who it is: from now on no newcomer takes the place.
    pub fn prove(&self) {
        self.connections.open().slots.prove(self.number);
    }

    /// The task that ends when the place is given up.
    pub(crate) fn runs_in(&self, handle: AbortHandle) {
        if let Some(task) = self.connections.open().tasks.get_mut(&self.number) {
            task.handle = Some(handle);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        open.tasks.remove(&self.number);
        open.slots.leave(self.number);
    }
}
