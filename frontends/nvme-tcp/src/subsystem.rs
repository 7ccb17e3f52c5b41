//! The subsystems of a target, and what differs between them.

/// The longest keep-alive timeout of the discovery subsystem, and its timeout if the host asks for none. Linux's target
/// has the same.
const DISCOVERY_KEEP_ALIVE_MS: u32 = 120_000;

/// A subsystem, by what it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subsystem {
    Discovery,
    Blocks,
    Pools,
}

impl Subsystem {
    /// Most data of one command (MDTS), as log2 of pages of 4096 bytes.
    pub(crate) const fn transfer_shift(self) -> u8 {
        match self {
            Self::Pools => 12,
            Self::Blocks | Self::Discovery => 8,
        }
    }

    /// Most bytes of data of one command that waits for its data or is answered in parts.
    pub(crate) const fn transfer_bytes_max(self) -> u64 {
        match self {
            Self::Discovery => 0,
            Self::Blocks | Self::Pools => 4096 << self.transfer_shift(),
        }
    }

    /// The keep-alive timeout that is granted; 0 for none. Any host may connect to the discovery subsystem, so there a
    /// timeout always applies.
    pub(crate) const fn keep_alive_ms(self, asked_ms: u32) -> u32 {
        match (self, asked_ms) {
            (Self::Discovery, 1..DISCOVERY_KEEP_ALIVE_MS) => asked_ms,
            (Self::Discovery, _) => DISCOVERY_KEEP_ALIVE_MS,
            _ => asked_ms,
        }
    }
}
