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
}

impl InjectedBug {
    /// All bugs.
    pub const ALL: [Self; 6] = [
        Self::StaleAck,
        Self::EarlyRelease,
        Self::NoReserve,
        Self::EarlyMove,
        Self::EndlessLease,
        Self::LongLease,
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
        }
    }
}
