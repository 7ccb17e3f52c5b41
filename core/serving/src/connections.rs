//! Counts of a server's connections: how many are open, and how many it refused or closed for want of slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spillway_types::{ConnectionSlots, Peer, SlotLimits, SlotsFull};

/// Why a server refused a connection, or closed one for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An unauthenticated connection gave way to a newer one.
    Displaced,
    /// All slots are taken.
    Full,
    /// Its peer has all the connections that one peer may have, or opens them too fast.
    Peer,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Displaced, Self::Full, Self::Peer];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Displaced => "displaced",
            Self::Full => "full",
            Self::Peer => "peer",
        }
    }
}

/// Counts of a server's connections.
#[derive(Debug, Default)]
pub struct ConnectionCounts {
    open: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
}

impl ConnectionCounts {
    /// Connections that hold a slot, whether their peer is admitted or not.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Notes how many connections hold a slot now.
    pub fn set_open(&self, connections: usize) {
        self.open.store(connections as u64, Ordering::Relaxed);
    }

    /// Connections that were refused or closed for this reason.
    #[must_use]
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].load(Ordering::Relaxed)
    }

    /// Counts one that is refused or closed.
    pub fn refuse(&self, why: Refusal) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// [`ConnectionSlots`] that count.
#[derive(Debug)]
pub struct CountedSlots {
    slots: ConnectionSlots,
    counts: Arc<ConnectionCounts>,
}

impl CountedSlots {
    /// No connections yet.
    pub const fn new(limits: SlotLimits, counts: Arc<ConnectionCounts>) -> Self {
        Self { slots: ConnectionSlots::new(limits), counts }
    }

    /// [`ConnectionSlots::enter`].
    ///
    /// # Errors
    /// [`SlotsFull`].
    pub fn enter(&mut self, number: u64, peer: Peer) -> Result<Option<u64>, SlotsFull> {
        let entered = self.slots.enter(number, peer);
        match entered {
            Ok(None) => {}
            Ok(Some(_)) => self.counts.refuse(Refusal::Displaced),
            Err(SlotsFull) => self.counts.refuse(Refusal::Full),
        }
        self.counts.set_open(self.slots.open());
        entered
    }

    /// [`ConnectionSlots::prove`].
    pub fn prove(&mut self, number: u64) {
        self.slots.prove(number);
    }

    /// [`ConnectionSlots::leave`].
    pub fn leave(&mut self, number: u64) {
        self.slots.leave(number);
        self.counts.set_open(self.slots.open());
    }

    /// [`ConnectionSlots::waits_for_ends`].
    #[must_use]
    pub fn waits_for_ends(&self) -> bool {
        self.slots.waits_for_ends()
    }

    /// The counts.
    #[must_use]
    pub const fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_give_way_or_are_refused_are_counted() {
        let limits = SlotLimits { connections_max: 3, unproven_max: 2, unproven_of_peer_max: 2 };
        let mut slots = CountedSlots::new(limits, Arc::default());
        let counts = Arc::clone(slots.counts());
        let peer = Peer::User(1000);
        assert_eq!((slots.enter(1, peer), slots.enter(2, peer)), (Ok(None), Ok(None)));
        assert_eq!((counts.open(), Refusal::ALL.map(|why| counts.refused(why))), (2, [0; 3]));
        assert_eq!(slots.enter(3, peer), Ok(Some(1)));
        slots.leave(1);
        assert_eq!(counts.open(), 2, "one that gave way holds no slot");
        slots.prove(2);
        slots.prove(3);
        assert_eq!(slots.enter(4, peer), Ok(None));
        slots.prove(4);
        assert_eq!(slots.enter(5, peer), Err(SlotsFull));
        counts.refuse(Refusal::Peer);
        counts.refuse(Refusal::Peer);
        assert_eq!(Refusal::ALL.map(|why| counts.refused(why)), [1, 1, 2]);
        (2..=4).for_each(|number| slots.leave(number));
        assert_eq!(counts.open(), 0);
    }
}
