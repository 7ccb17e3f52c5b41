//! The phase of an association, and what it waits for while it comes up.

/// How far an association has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Down { dial_at_us: u64 },
    Starting { lane: usize, stage: Stage, until_us: u64 },
    Mending { since_us: u64 },
    Up,
    Stopped,
}

/// What is waited for while a lane starts.
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

/// What an exchange for authentication sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// What this side offers.
    Negotiate,
    /// The request for the challenge.
    WantChallenge,
    /// The proof.
    Reply,
    /// The request for the verdict.
    WantVerdict,
}
