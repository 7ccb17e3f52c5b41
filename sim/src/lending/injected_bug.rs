//! Injected bugs. Each changes the input or the output of a state machine. The simulation must find
//! every one (sim/tests/lending.rs).

/// A bug that the simulation injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedBug {
    /// A borrower accepts any ack, however old, as the answer to its last request.
    StaleAck,
    /// A lender frees a loan as soon as it recalls it, before the borrower has forgotten it.
    EarlyRelease,
    /// A lender believes that it has twice its memory.
    NoReserve,
    /// A move is reported as done, and the old place dropped, before the pages are copied.
    EarlyMove,
    /// A lender never frees a loan whose lease has run out.
    EndlessLease,
    /// A borrower believes that its leases last twice as long.
    LongLease,
    /// Copies that were lost are never made again.
    NoRepair,
    /// A borrower goes on using a loan after it has said that it is over.
    NoFencing,
    /// A write is acknowledged though no copy has it yet.
    EarlyAck,
    /// A copy that did not take a write stays in use.
    SilentCopy,
    /// A lender grants without regard to the memory of its own programs.
    BlindGrant,
    /// A borrower's machine does not hear of the copies that the data plane gave up.
    UnheardLoss,
    /// Every second host's clock runs a fifth too fast, so that its leases end before the other one expects it.
    FastClock,
}

impl InjectedBug {
    /// All bugs.
    pub const ALL: [Self; 13] = [
        Self::StaleAck,
        Self::EarlyRelease,
        Self::NoReserve,
        Self::EarlyMove,
        Self::EndlessLease,
        Self::LongLease,
        Self::NoRepair,
        Self::NoFencing,
        Self::EarlyAck,
        Self::SilentCopy,
        Self::BlindGrant,
        Self::UnheardLoss,
        Self::FastClock,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StaleAck => "stale-ack",
            Self::EarlyRelease => "early-release",
            Self::NoReserve => "no-reserve",
            Self::EarlyMove => "early-move",
            Self::EndlessLease => "endless-lease",
            Self::LongLease => "long-lease",
            Self::NoRepair => "no-repair",
            Self::NoFencing => "no-fencing",
            Self::EarlyAck => "early-ack",
            Self::SilentCopy => "silent-copy",
            Self::BlindGrant => "blind-grant",
            Self::UnheardLoss => "unheard-loss",
            Self::FastClock => "fast-clock",
        }
    }
}
