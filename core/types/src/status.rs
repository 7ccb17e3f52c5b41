//! The store's answers and counters.

/// The answer to a put. A refusal is a normal answer; it removes the key's old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Put {
    /// The value is stored.
    Stored,
    /// Nothing is stored under the key.
    Refused(Refusal),
}

/// The reason why a put was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client holds as many pages as its target allows.
    AtTarget,
    /// The store has no memory left.
    NodeFull,
    /// The client is frozen.
    Frozen,
    /// The value is empty or longer than [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX).
    Length,
    /// The pool does not exist.
    NoPool,
}

/// The answer to a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// The value was copied out; its length in bytes.
    Hit(usize),
    /// No value is stored under the key.
    Miss,
    /// The buffer is too short. Holds the value's length in bytes. Nothing was copied or consumed.
    Short(usize),
}

/// Counters of one client since it was added. The last three fields are present levels, not counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requested puts.
    pub puts: u64,
    /// Puts that stored their value.
    pub puts_stored: u64,
    /// Puts refused because the client was at its target.
    pub puts_refused_at_target: u64,
    /// Puts refused because the store had no memory left.
    pub puts_refused_node_full: u64,
    /// Puts refused for another reason: frozen, bad length.
    pub puts_refused_other: u64,
    /// Requested gets.
    pub gets: u64,
    /// Gets that found a value.
    pub hits: u64,
    /// Gets that found none.
    pub misses: u64,
    /// Pages freed by flushes, pool destruction and failed overwrites.
    pub flushed_pages: u64,
    /// Ephemeral pages dropped under pressure.
    pub evicted_pages: u64,
    /// Pages that the client holds now.
    pub used_pages: u64,
    /// Pages that the client may hold; `u64::MAX` means no limit.
    pub target_pages: u64,
    /// Pages reserved for the client's reserved pools. They count neither as used nor against the target.
    pub reserved_pages: u64,
}

impl Statistics {
    /// Pages held above the target.
    pub const fn debt_pages(&self) -> u64 {
        self.used_pages.saturating_sub(self.target_pages)
    }
}
