//! The phase of an association, and its stages while it connects.

/// The state of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Down { dial_at_us: u64 },
    Starting { lane: usize, stage: Stage, until_us: u64 },
    Mending { since_us: u64 },
    Up,
    Stopped,
}

/// The answer that a connecting lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Dial,
    Initialize,
    Connect,
    Authenticate(Exchange),
    Enable,
    Ready,
    Identify,
    Queues,
    Pools,
}

/// The last message of an authentication exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// This side's offer.
    Negotiate,
    /// The request for the challenge.
    WantChallenge,
    /// The proof.
    Reply,
    /// The request for the verdict.
    WantVerdict,
}
