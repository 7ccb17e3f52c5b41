//! The connections of a server: how many it keeps, and which it closes first when there are too many.
//!
//! Opening a connection without authenticating costs a peer nothing, so unauthenticated connections must not keep
//! others out. They get only a share of the slots, and each peer a share of that. When one of these shares is full, the
//! server closes the oldest unauthenticated connection for the newest. A peer that authenticates within milliseconds is
//! hardly ever affected. A peer that holds unauthenticated connections loses its own oldest ones.

use alloc::collections::VecDeque;
use core::net::IpAddr;

/// The origin of a connection, as known before its peer has authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A user of this host.
    User(u32),
    /// A network address. Of IPv6 only the first 64 bits, because one host can use all addresses below them.
    Address(IpAddr),
}

impl Peer {
    /// The peer at an address.
    pub fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let mut segments = address.segments();
                segments[4..].fill(0);
                IpAddr::V6(segments.into())
            }
            address => address,
        })
    }
}

/// Bounds on the connections of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// All connections.
    pub connections_max: usize,
    /// Unauthenticated connections.
    pub unproven_max: usize,
    /// Unauthenticated connections of one peer.
    pub unproven_of_peer_max: usize,
}

impl SlotLimits {
    /// Limits with a quarter of the slots for unauthenticated connections, and a quarter of that for each peer.
    pub const fn quarters(connections_max: usize) -> Self {
        let unproven_max = connections_max.div_ceil(4);
        Self { connections_max, unproven_max, unproven_of_peer_max: unproven_max.div_ceil(4) }
    }

    /// At least this many unauthenticated connections of a peer, if that is no more than half of all.
    pub fn with_peer_least(self, least: usize) -> Self {
        let least = least.min(self.connections_max.div_ceil(2));
        Self {
            connections_max: self.connections_max,
            unproven_max: self.unproven_max.max(least),
            unproven_of_peer_max: self.unproven_of_peer_max.max(least),
        }
    }
}

/// The connections of a server. The caller numbers them.
#[derive(Debug)]
pub struct ConnectionSlots {
    limits: SlotLimits,
    /// Connections that hold a slot; those in `ending` do not.
    open: usize,
    /// The unauthenticated ones, oldest first.
    unproven: VecDeque<(u64, Peer)>,
    /// Displaced connections that have not ended yet.
    ending: VecDeque<u64>,
}

/// A connection that gives way to a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// Its number.
    pub number: u64,
    /// Its peer.
    pub peer: Peer,
}

/// There is no slot for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsFull;

impl ConnectionSlots {
    /// No connections yet.
    pub const fn new(limits: SlotLimits) -> Self {
        Self { limits, open: 0, unproven: VecDeque::new(), ending: VecDeque::new() }
    }

    /// Takes a slot for a new connection. If it returns another one, the caller closes that, which was displaced.
    ///
    /// # Errors
    /// [`SlotsFull`] if authenticated peers hold all slots, or too many displaced connections have not ended.
    pub fn enter(&mut self, number: u64, peer: Peer) -> Result<Option<Displaced>, SlotsFull> {
        let own = self.unproven_of(peer);
        let loser = if own >= self.limits.unproven_of_peer_max {
            Some(peer)
        } else if self.unproven.len() >= self.limits.unproven_max
            || self.open >= self.limits.connections_max
        {
            Some(self.largest().ok_or(SlotsFull)?)
        } else {
            None
        };
        if loser.is_some() && self.waits_for_ends() {
            return Err(SlotsFull);
        }
        let gone = loser.and_then(|peer| self.displace(peer));
        self.unproven.push_back((number, peer));
        self.open += 1;
        Ok(gone)
    }

    /// Marks a connection as authenticated. From now on it is never displaced.
    pub fn prove(&mut self, number: u64) {
        self.unproven.retain(|&(other, _)| other != number);
    }

    /// Removes a connection that has ended.
    pub fn leave(&mut self, number: u64) {
        if let Some(at) = self.ending.iter().position(|&other| other == number) {
            self.ending.remove(at);
            return;
        }
        self.prove(number);
        self.open = self.open.saturating_sub(1);
    }

    /// Whether too many displaced connections have not ended. Until they do, no further connection is displaced.
    pub fn waits_for_ends(&self) -> bool {
        self.ending.len() >= self.limits.unproven_max
    }

    /// The number of connections that hold a slot.
    pub const fn open(&self) -> usize {
        self.open
    }

    fn unproven_of(&self, peer: Peer) -> usize {
        self.unproven.iter().filter(|(_, other)| *other == peer).count()
    }

    /// The peer with the most unauthenticated connections; of several, the one with the oldest connection.
    fn largest(&self) -> Option<Peer> {
        let mut most: Option<(usize, Peer)> = None;
        for &(_, peer) in &self.unproven {
            let count = self.unproven_of(peer);
            if most.is_none_or(|(largest, _)| count > largest) {
                most = Some((count, peer));
            }
        }
        most.map(|(_, peer)| peer)
    }

    /// Takes the slot of the peer's oldest unauthenticated connection, and returns that.
    fn displace(&mut self, peer: Peer) -> Option<Displaced> {
        let at = self.unproven.iter().position(|(_, other)| *other == peer)?;
        let (number, _) = self.unproven.remove(at)?;
        self.ending.push_back(number);
        self.open -= 1;
        Some(Displaced { number, peer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SlotLimits =
        SlotLimits { connections_max: 8, unproven_max: 4, unproven_of_peer_max: 2 };
    const MALLORY: Peer = Peer::User(65534);
    const ALICE: Peer = Peer::User(1000);

    fn gone(number: u64, peer: Peer) -> Result<Option<Displaced>, SlotsFull> {
        Ok(Some(Displaced { number, peer }))
    }

    #[test]
    fn a_peer_that_proves_nothing_loses_its_own_oldest() {
        let mut slots = ConnectionSlots::new(LIMITS);
        assert_eq!(slots.enter(1, MALLORY), Ok(None));
        assert_eq!(slots.enter(2, MALLORY), Ok(None));
        assert_eq!(slots.enter(3, ALICE), Ok(None));
        assert_eq!(slots.enter(4, MALLORY), gone(1, MALLORY));
        slots.leave(1);
        assert_eq!(slots.enter(5, MALLORY), gone(2, MALLORY));
        slots.leave(2);
        slots.prove(3);
        assert_eq!(slots.open(), 3);
    }

    #[test]
    fn many_peers_lose_the_oldest_of_whoever_has_most() {
        let mut slots = ConnectionSlots::new(LIMITS);
        assert_eq!(slots.enter(1, ALICE), Ok(None));
        for (number, user) in [(2, 7), (3, 7), (4, 8)] {
            assert_eq!(slots.enter(number, Peer::User(user)), Ok(None));
        }
        assert_eq!(slots.enter(5, Peer::User(9)), gone(2, Peer::User(7)));
        assert_eq!(slots.open(), 4);
    }

    #[test]
    fn those_who_have_proven_who_they_are_are_never_displaced() {
        let mut slots = ConnectionSlots::new(LIMITS);
        for number in 0..8 {
            assert_eq!(slots.enter(number, ALICE), Ok(None));
            slots.prove(number);
        }
        assert_eq!(slots.enter(8, MALLORY), Err(SlotsFull));
        slots.leave(0);
        assert_eq!(slots.enter(9, MALLORY), Ok(None));
        assert_eq!(slots.enter(10, ALICE), gone(9, MALLORY), "the last place goes to the newest");
        slots.leave(9);
        slots.prove(10);
        assert_eq!(slots.enter(11, MALLORY), Err(SlotsFull));
        assert_eq!(slots.open(), 8);
    }

    #[test]
    fn connections_that_do_not_end_are_bounded_too() {
        let mut slots = ConnectionSlots::new(LIMITS);
        let entered = (0..100).filter(|&number| slots.enter(number, MALLORY).is_ok()).count();
        assert_eq!(entered, LIMITS.unproven_of_peer_max + LIMITS.unproven_max);
        assert!(slots.waits_for_ends());
        assert_eq!(slots.enter(100, ALICE), Ok(None), "they keep nobody else out");
        slots.leave(0);
        assert!(slots.enter(101, MALLORY).is_ok());
    }

    #[test]
    fn whoever_leaves_counts_once() {
        let mut slots = ConnectionSlots::new(LIMITS);
        for round in 0..1000 {
            let (first, second) = (round * 3, round * 3 + 1);
            assert!(slots.enter(first, ALICE).is_ok());
            assert!(slots.enter(second, MALLORY).is_ok());
            slots.prove(second);
            slots.leave(first);
            slots.leave(second);
        }
        assert_eq!((slots.open(), slots.unproven.len(), slots.ending.len()), (0, 0, 0));
    }

    #[test]
    fn an_address_is_a_host() {
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1:2:3"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.2"), at("10.0.0.1"));
    }

    #[test]
    fn quarters_leave_room_for_somebody() {
        assert_eq!(
            SlotLimits::quarters(1024),
            SlotLimits { connections_max: 1024, unproven_max: 256, unproven_of_peer_max: 64 }
        );
        assert_eq!(SlotLimits::quarters(1).unproven_of_peer_max, 1);
        let with_least = |connections_max| {
            let limits = SlotLimits::quarters(connections_max).with_peer_least(16);
            (limits.unproven_max, limits.unproven_of_peer_max)
        };
        assert_eq!([8, 46, 1024].map(with_least), [(4, 4), (16, 16), (256, 64)]);
    }
}
