//! Users that open connections faster than these can be served.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use spillway_types::Peer;

/// How many of its connections a user may displace in a [`WINDOW`]: half of those that may be ending when a server with
/// 256 connections waits for ends. So one user does not make it wait.
const DISPLACED_MAX: u32 = 32;
const WINDOW: Duration = Duration::from_secs(1);

/// How long a thread that accepts connections leaves the listen queue alone while a user floods it. Otherwise each of the
/// user's connections wakes the thread, which takes a processor. This is short for others, who wait as well; and the queue,
/// with room for thousands, does not fill.
pub const FLOOD_PAUSE: Duration = Duration::from_micros(200);

/// How often users displaced connections of their own in this window. A connection costs its peer less than the server,
/// so a flood would fill the listen queue, where others wait or are refused. Beyond the bound, the server closes a user's
/// new connections without serving them. An address can be that of many users, who would all be kept out, so addresses
/// have no bound.
#[derive(Debug)]
pub struct Floods {
    since: Instant,
    displaced: HashMap<u32, u32>,
}

impl Floods {
    pub fn new(now: Instant) -> Self {
        Self { since: now, displaced: HashMap::new() }
    }

    /// Whether the peer has displaced too many connections.
    pub fn is_one(&mut self, peer: Peer, now: Instant) -> bool {
        if now.duration_since(self.since) >= WINDOW {
            self.since = now;
            self.displaced.clear();
        }
        let Peer::User(uid) = peer else { return false };
        self.displaced.get(&uid).is_some_and(|count| *count >= DISPLACED_MAX)
    }

    /// Counts a displacement.
    pub fn count(&mut self, peer: Peer) {
        if let Peer::User(uid) = peer {
            *self.displaced.entry(uid).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn a_user_that_displaces_many_waits_for_the_next_second_and_nobody_else_does() {
        let began = Instant::now();
        let mut floods = Floods::new(began);
        let (user, address) = (Peer::User(65534), Peer::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        for peer in [user, address] {
            for _ in 0..DISPLACED_MAX {
                assert!(!floods.is_one(peer, began));
                floods.count(peer);
            }
        }
        assert!(floods.is_one(user, began + WINDOW / 2));
        assert!(!floods.is_one(address, began + WINDOW / 2));
        assert!(!floods.is_one(Peer::User(0), began + WINDOW / 2));
        assert!(!floods.is_one(user, began + WINDOW));
        (0..DISPLACED_MAX).for_each(|_| floods.count(user));
        assert!(floods.is_one(user, began + WINDOW + WINDOW / 2), "in the next second as well");
    }
}
