//! Connection slots: admits connections, and displaces or refuses some when there are too many.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_serving::{ConnectionCounts, CountedSlots, Refusal};
use spillway_types::{Peer, Seldom, SeldomOfPeers, SlotLimits, Whose};
use tokio::task::AbortHandle;

/// Bounds on the connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of all connections, and of unauthenticated ones: see [`ConnectionSlots`](spillway_types::ConnectionSlots).
    pub slots: SlotLimits,
    /// Of one peer, authenticated or not, so that a client with a token can't take all slots.
    pub of_peer_max: usize,
}

impl ConnectionLimits {
    /// Half of the slots for each peer; a quarter for unauthenticated connections, and a quarter of that for each peer.
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
    /// The listener's name, for the log.
    listener: &'static str,
    limits: ConnectionLimits,
    began: Instant,
    open: Mutex<Open>,
    lines: Mutex<Lines>,
}

#[derive(Debug)]
struct Open {
    next: u64,
    slots: CountedSlots,
    /// Connections that have not ended, including displaced ones.
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

/// A connection's slot, which is freed when this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    connections: Arc<Connections>,
    number: u64,
}

impl Connections {
    /// No connections yet. The log uses the listener's name.
    pub fn new(
        listener: &'static str,
        limits: ConnectionLimits,
        counts: Arc<ConnectionCounts>,
    ) -> Arc<Self> {
        let slots = CountedSlots::new(limits.slots, counts);
        Arc::new(Self {
            listener,
            limits,
            began: Instant::now(),
            open: Mutex::new(Open { next: 0, slots, tasks: HashMap::new() }),
            lines: Mutex::default(),
        })
    }

    /// Takes a slot for a new connection; none if there is none. This may displace an older unauthenticated
    /// connection.
    pub(crate) fn enter(self: &Arc<Self>, peer: Peer) -> Option<ConnectionPermit> {
        let mut open = self.open();
        let own = open.tasks.values().filter(|task| task.peer == peer).count();
        let number = open.next;
        let entered = if own < self.limits.of_peer_max {
            open.slots.enter(number, peer).ok()
        } else {
            open.slots.counts().refuse(Refusal::Peer);
            None
        };
        let Some(gave_way) = entered else {
            drop(open);
            self.complain(peer, "too many connections: the new one is closed");
            return None;
        };
        open.next += 1;
        open.tasks.insert(number, Task { peer, handle: None });
        let loser = gave_way.and_then(|loser| {
            let task = open.tasks.get(&loser.number)?;
            task.handle.as_ref().inspect(|handle| handle.abort());
            Some(loser.peer)
        });
        drop(open);
        if let Some(loser) = loser {
            self.complain(
                loser,
                "an unauthenticated connection is closed in favour of a newer one",
            );
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

    /// Logs how many lines were suppressed in past intervals.
    pub(crate) fn sum_up(&self) {
        let (mut lines, now_ms) = self.lines();
        while let Some((peer, left_out)) = lines.of_peers.left_out(now_ms) {
            tracing::warn!(%peer, left_out, "{}: more lines like the last ones of this peer", self.listener);
        }
    }

    /// Logs that no connection could be accepted.
    pub(crate) fn failed(&self, error: &io::Error) {
        let (mut lines, now_ms) = self.lines();
        if let Some(others) = lines.failures.line(now_ms) {
            tracing::warn!(%error, others, "{}: no connection could be accepted", self.listener);
        }
    }
}

impl ConnectionPermit {
    /// The peer has authenticated: from now on no new connection displaces this one.
    pub fn prove(&self) {
        self.connections.open().slots.prove(self.number);
    }

    /// The task to end when the slot is displaced.
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
