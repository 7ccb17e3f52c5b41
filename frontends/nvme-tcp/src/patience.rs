//! How long a host may pause while it owes data.

/// A host that sends at least so much of the outstanding data before the deadline gets a new deadline.
pub(crate) const MOVES_BYTES: u64 = 64 << 10;

/// The deadline for the data that a host owes.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// None while the host owes nothing.
    until_ms: Option<u64>,
    what: What,
    /// Bytes that had arrived when the time began.
    came: u64,
    /// Bytes that must arrive before it ends.
    wanted: u64,
}

/// What a host owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed {
    pub(crate) what: What,
    /// Bytes that are missing.
    pub(crate) bytes: u64,
    /// Bytes of that kind that have arrived since the connection began.
    pub(crate) came: u64,
}

/// A kind of data that a host owes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum What {
    /// Data that the target asked for.
    #[default]
    Granted,
    /// The rest of a PDU.
    Pdu,
}

impl Patience {
    /// Notes what is owed now. False if too little of it arrived before the deadline.
    pub(crate) fn look(&mut self, now_ms: u64, owed: Owed, timeout_ms: u64) -> bool {
        let came = owed.came.saturating_sub(self.came);
        if owed.bytes == 0 {
            self.until_ms = None;
            return true;
        }
        match self.until_ms {
            Some(until_ms) if came < self.wanted && owed.what == self.what => now_ms < until_ms,
            _ => {
                self.what = owed.what;
                self.until_ms = Some(now_ms.saturating_add(timeout_ms));
                self.came = owed.came;
                self.wanted = owed.bytes.min(MOVES_BYTES);
                true
            }
        }
    }

    /// Drops the deadline, because it is the target that makes the host wait.
    pub(crate) fn rest(&mut self) {
        self.until_ms = None;
    }

    /// The deadline.
    pub(crate) const fn until_ms(&self) -> Option<u64> {
        self.until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owed(bytes: u64, came: u64) -> Owed {
        Owed { what: What::Granted, bytes, came }
    }

    #[test]
    fn a_host_that_moves_goes_on_for_ever() {
        let mut patience = Patience::default();
        let mut came = 0;
        for step in 0..100 {
            assert!(patience.look(step * 900, owed(16 << 20, came), 1000), "{step}");
            came += MOVES_BYTES;
        }
    }

    #[test]
    fn one_that_only_seems_to_move_does_not() {
        let mut patience = Patience::default();
        assert!(patience.look(0, owed(16 << 20, 0), 1000));
        assert!(patience.look(999, owed(16 << 20, MOVES_BYTES - 1), 1000));
        assert!(!patience.look(1000, owed(16 << 20, MOVES_BYTES - 1), 1000));
    }

    #[test]
    fn little_is_owed_in_full() {
        let mut patience = Patience::default();
        assert!(patience.look(0, owed(10, 0), 1000));
        assert!(patience.look(900, owed(1, 9), 1000));
        assert_eq!(patience.until_ms(), Some(1000));
        assert!(patience.look(999, owed(0, 10), 1000));
        assert_eq!(patience.until_ms(), None, "nothing is owed");
        assert!(patience.look(5000, owed(10, 10), 1000), "a new debt has its own time");
        assert!(!patience.look(6000, owed(10, 10), 1000));
    }

    #[test]
    fn the_end_of_a_pdu_and_granted_data_are_apart() {
        let mut patience = Patience::default();
        let pdu = |came| Owed { what: What::Pdu, bytes: 1, came };
        for step in 0..10 {
            assert!(
                patience.look(step * 900, pdu(5000 + step), 1000),
                "each byte is a sign of life"
            );
        }
        assert!(patience.look(9000, owed(10, 0), 1000));
        assert!(!patience.look(10_000, owed(10, 0), 1000));
    }

    #[test]
    fn a_rest_begins_the_time_anew() {
        let mut patience = Patience::default();
        assert!(patience.look(0, owed(10, 0), 1000));
        patience.rest();
        assert!(patience.look(2000, owed(10, 0), 1000));
        assert_eq!(patience.until_ms(), Some(3000));
    }
}
