//! Rate limits for log lines that a peer can cause at any rate.

use alloc::vec::Vec;
use core::fmt;

use crate::slots::Peer;

/// Lets one log line through in each second, and counts the others.
#[derive(Debug, Default)]
pub struct Seldom {
    /// The earliest time of the next line, milliseconds; `None` before the first one.
    next_ms: Option<u64>,
    left_out: u64,
}

impl Seldom {
    /// Time between two lines, ms.
    pub const INTERVAL_MS: u64 = 1000;

    /// If a line may be written now, the number of lines left out since the last one. `None`: leave this line out.
    pub fn line(&mut self, now_ms: u64) -> Option<u64> {
        if self.next_ms.is_some_and(|next| now_ms < next) {
            self.left_out += 1;
            return None;
        }
        self.next_ms = Some(now_ms.saturating_add(Self::INTERVAL_MS));
        Some(core::mem::take(&mut self.left_out))
    }
}

/// Lets [`Self::LINES_MAX`] log lines about each peer through in each minute, and counts the others. A flood of one
/// peer does not hide lines about other peers.
#[derive(Debug, Default)]
pub struct SeldomOfPeers {
    /// The peers of the current minute, oldest first.
    known: Vec<OfPeer>,
}

#[derive(Debug)]
struct OfPeer {
    of: Whose,
    until_ms: u64,
    lines: u32,
    left_out: u64,
}

/// The peer whose lines were left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This peer.
    Peer(Peer),
    /// All peers beyond [`SeldomOfPeers::PEERS_MAX`] together.
    Others,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(Peer::User(uid)) => write!(f, "uid {uid}"),
            Self::Peer(Peer::Address(address)) => write!(f, "{address}"),
            Self::Others => f.write_str("others"),
        }
    }
}

impl SeldomOfPeers {
    /// Time over which a peer's lines are counted, ms.
    pub const INTERVAL_MS: u64 = 60_000;
    /// Most lines about a peer in that time.
    pub const LINES_MAX: u32 = 4;
    /// Most peers that are counted separately.
    pub const PEERS_MAX: usize = 64;

    /// Whether a line about `peer` may be written now.
    pub fn line(&mut self, peer: Peer, now_ms: u64) -> bool {
        // Drops the peers whose time is over and that had no lines left out.
        self.known.retain(|known| known.left_out > 0 || now_ms < known.until_ms);
        let at = |of| self.known.iter().position(|known| known.of == of);
        let own = Whose::Peer(peer);
        let is_full = self.known.len() >= Self::PEERS_MAX;
        let of = if is_full && at(own).is_none() { Whose::Others } else { own };
        let known = match at(of) {
            Some(at) => &mut self.known[at],
            None => {
                let until_ms = now_ms.saturating_add(Self::INTERVAL_MS);
                self.known.push(OfPeer { of, until_ms, lines: 0, left_out: 0 });
                let last = self.known.len() - 1;
                &mut self.known[last]
            }
        };
        if known.lines < Self::LINES_MAX {
            known.lines += 1;
            return true;
        }
        known.left_out += 1;
        false
    }

    /// A peer whose time is over, and how many of its lines were left out. Call it until it returns `None`. With
    /// `now_ms` of `u64::MAX`, the time of every peer is over.
    pub fn left_out(&mut self, now_ms: u64) -> Option<(Whose, u64)> {
        let over = |known: &OfPeer| known.left_out > 0 && known.until_ms <= now_ms;
        let at = self.known.iter().position(over)?;
        let known = self.known.remove(at);
        Some((known.of, known.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = SeldomOfPeers::INTERVAL_MS;
    const LINES: usize = SeldomOfPeers::LINES_MAX as usize;

    #[test]
    fn a_peer_has_a_few_lines_a_minute_and_a_sum() {
        let mut seldom = SeldomOfPeers::default();
        let (stranger, other) = (Peer::User(65534), Peer::User(1000));
        let lines = |seldom: &mut SeldomOfPeers, peer, now_ms| {
            (0..1000).filter(|_| seldom.line(peer, now_ms)).count()
        };
        assert_eq!(lines(&mut seldom, stranger, 5000), LINES);
        assert!(seldom.line(other, 5001), "another's flood is not this one's");
        assert_eq!(seldom.left_out(4999 + MINUTE), None);
        // The number of missing lines was not reported yet, so it is kept.
        assert!(!seldom.line(stranger, 5000 + MINUTE));
        let missing = 1001 - LINES as u64;
        assert_eq!(seldom.left_out(5000 + MINUTE), Some((Whose::Peer(stranger), missing)));
        assert_eq!(seldom.left_out(u64::MAX), None);
        assert_eq!(lines(&mut seldom, stranger, 5000 + MINUTE), LINES);
    }

    #[test]
    fn many_peers_together_are_bounded() {
        let mut seldom = SeldomOfPeers::default();
        let written = (0..100_000).filter(|&uid| seldom.line(Peer::User(uid), 7)).count();
        assert_eq!(written, SeldomOfPeers::PEERS_MAX + LINES);
        let missing = 100_000 - written as u64;
        assert_eq!(seldom.left_out(7 + MINUTE), Some((Whose::Others, missing)));
        assert!(seldom.line(Peer::User(1), 7 + MINUTE));
        assert_eq!(seldom.known.len(), 1, "those of the minute before are forgotten");
    }

    #[test]
    fn a_line_a_second_says_how_many_are_missing() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.line(5000), Some(0));
        for at in 5000..5999 {
            assert_eq!(seldom.line(at), None);
        }
        assert_eq!(seldom.line(6000), Some(999));
        assert_eq!(seldom.line(6999), None);
        assert_eq!(seldom.line(9000), Some(1));
        assert_eq!(seldom.line(20_000), Some(0));
    }
}
