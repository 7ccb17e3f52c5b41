//! Counts of a server's connections: how many are open, and how many it refused or closed for want of slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use spillway_types::{ConnectionSlots, Displaced, Peer, SlotLimits, SlotsFull};

use crate::flood::Floods;

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

/// [`ConnectionSlots`] that count, and that refuse a user who opens unauthenticated connections too fast.
#[derive(Debug)]
pub struct CountedSlots {
    slots: ConnectionSlots,
    floods: Floods,
    /// A user was refused for a flood since the last [`Self::takes_pause`].
    is_flooded: bool,
    counts: Arc<ConnectionCounts>,
}

impl CountedSlots {
    /// No connections yet.
    #[must_use]
    pub fn new(limits: SlotLimits, counts: Arc<ConnectionCounts>) -> Self {
        Self {
            slots: ConnectionSlots::new(limits),
            floods: Floods::new(Instant::now()),
            is_flooded: false,
            counts,
        }
    }

    /// [`ConnectionSlots::enter`].
    ///
    /// # Errors
    /// [`Refusal::Full`]; [`Refusal::Peer`] if this user has displaced very many connections of its own in this second.
    pub fn enter(&mut self, number: u64, peer: Peer) -> Result<Option<Displaced>, Refusal> {
        let entered = if self.floods.is_one(peer, Instant::now()) {
            self.is_flooded = true;
            Err(Refusal::Peer)
        } else {
            self.slots.enter(number, peer).map_err(|SlotsFull| Refusal::Full)
        };
        match entered {
            Ok(None) => {}
            Ok(Some(displaced)) => {
                self.counts.refuse(Refusal::Displaced);
                // Who displaces others does not flood: they hold more than their share.
                if displaced.peer == peer {
                    self.floods.count(peer);
                }
            }
            Err(why) => self.counts.refuse(why),
        }
        self.counts.set_open(self.slots.open());
        entered
    }

    /// Whether the server should pause for [`FLOOD_PAUSE`](crate::FLOOD_PAUSE) before it waits for connections: since the
    /// last call a user was refused because of a flood.
    pub const fn takes_pause(&mut self) -> bool {
        core::mem::replace(&mut self.is_flooded, false)
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
        assert_eq!(slots.enter(3, peer), Ok(Some(Displaced { number: 1, peer })));
        slots.leave(1);
        assert_eq!(counts.open(), 2, "one that gave way holds no slot");
        slots.prove(2);
        slots.prove(3);
        assert_eq!(slots.enter(4, peer), Ok(None));
        slots.prove(4);
        assert_eq!(slots.enter(5, peer), Err(Refusal::Full));
        counts.refuse(Refusal::Peer);
        counts.refuse(Refusal::Peer);
        assert_eq!(Refusal::ALL.map(|why| counts.refused(why)), [1, 1, 2]);
        (2..=4).for_each(|number| slots.leave(number));
        assert_eq!(counts.open(), 0);
    }

    #[test]
    fn a_user_who_opens_connections_too_fast_is_refused_and_others_are_not() {
        let mut slots = CountedSlots::new(SlotLimits::quarters(256), Arc::default());
        let (user, other) = (Peer::User(65534), Peer::User(1000));
        let mut refused = 0;
        // A second may end in between, and its bound with it.
        for number in 0..200 {
            match slots.enter(number, user) {
                Ok(displaced) => {
                    displaced.inspect(|displaced| slots.leave(displaced.number));
                }
                Err(why) => {
                    assert_eq!(why, Refusal::Peer);
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
        assert!(slots.takes_pause());
        assert!(!slots.takes_pause(), "until the next one is refused");
        assert_eq!(slots.counts().refused(Refusal::Peer), refused);
        assert_eq!(slots.enter(1000, other), Ok(None));
    }

    #[test]
    fn whoever_displaces_others_does_not_flood() {
        let limits = SlotLimits { connections_max: 64, unproven_max: 4, unproven_of_peer_max: 4 };
        let mut slots = CountedSlots::new(limits, Arc::default());
        assert!((0..4).all(|number| slots.enter(number, Peer::User(1)) == Ok(None)));
        for number in 4..200 {
            // Each newcomer displaces one of those who hold most, or of its own.
            let displaced = slots.enter(number, Peer::User(number as u32)).unwrap().unwrap();
            slots.leave(displaced.number);
        }
    }
}
