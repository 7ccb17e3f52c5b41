//! Kinds of pools, and tmem's flag word for them.

use crate::PoolId;

/// The lifetime of a pool's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// A value stays until it is flushed or its pool is destroyed.
    Persistent,
    /// A value may vanish at any time.
    Ephemeral,
}

/// The clients that may use a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Only its client.
    Private,
    /// Every client that the operator has authorised for this UUID.
    Shared {
        /// The 128-bit UUID by which clients find the pool.
        uuid: u128,
    },
}

/// The kind of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// Whether values may vanish.
    pub lifetime: Lifetime,
    /// The clients that may use the pool.
    pub sharing: Sharing,
}

/// A pool as one client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Its id for this client.
    pub id: PoolId,
    /// A small number from 1: unique among the store's pools, the same for all members of a shared pool, and constant
    /// while the pool exists. NVMe's namespace id on the wire.
    pub number: u32,
    /// Its kind.
    pub spec: PoolSpec,
    /// Pages that its values count as.
    pub pages: u64,
    /// Pages reserved for it; 0 for a pool without a reservation.
    pub reserved_pages: u64,
}

/// The reason why a flag word is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSpecError {
    /// The version in bits 24 to 31 is not [`PoolSpec::VERSION`].
    Version(u8),
    /// These unknown bits are set.
    Flags(u32),
    /// The page size in bits 4 to 7 is not 4 KiB. Holds log2 of the requested size in bytes.
    PageSize(u8),
}

impl core::fmt::Display for PoolSpecError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Version(version) => write!(f, "unknown pool version {version}"),
            Self::Flags(bits) => write!(f, "unknown pool flags {bits:#x}"),
            Self::PageSize(log2) => write!(f, "page size 2^{log2} is not served, only 4096"),
        }
    }
}

impl core::error::Error for PoolSpecError {}

const PERSIST: u32 = 1 << 0;
const SHARED: u32 = 1 << 1;
const PAGE_SIZE_SHIFT: u32 = 4;
const PAGE_SIZE_MASK: u32 = 0xf << PAGE_SIZE_SHIFT;
const VERSION_SHIFT: u32 = 24;
const KNOWN: u32 = PERSIST | SHARED | PAGE_SIZE_MASK | 0xff << VERSION_SHIFT;

impl PoolSpec {
    /// The version of the pool interface, as in Xen's and Linux's tmem.
    pub const VERSION: u8 = 1;

    /// A private pool whose values stay.
    pub const PERSISTENT: Self = Self { lifetime: Lifetime::Persistent, sharing: Sharing::Private };
    /// A private pool whose values may vanish.
    pub const EPHEMERAL: Self = Self { lifetime: Lifetime::Ephemeral, sharing: Sharing::Private };

    /// A persistent pool for all clients authorised for `uuid`.
    pub const fn shared_persistent(uuid: u128) -> Self {
        Self { lifetime: Lifetime::Persistent, sharing: Sharing::Shared { uuid } }
    }

    /// An ephemeral pool for all clients authorised for `uuid`.
    pub const fn shared_ephemeral(uuid: u128) -> Self {
        Self { lifetime: Lifetime::Ephemeral, sharing: Sharing::Shared { uuid } }
    }

    /// Decodes tmem's flag word (Xen `public/tmem.h`): bit 0 persistent, bit 1 shared, bits 4 to 7
    /// log2 of the page size minus 12, bits 24 to 31 the version. `uuid` is used only if bit 1 is set.
    pub fn from_flags(flags: u32, uuid: u128) -> Result<Self, PoolSpecError> {
        let version = (flags >> VERSION_SHIFT) as u8;
        if version != Self::VERSION {
            return Err(PoolSpecError::Version(version));
        }
        if flags & !KNOWN != 0 {
            return Err(PoolSpecError::Flags(flags & !KNOWN));
        }
        let page_size = ((flags & PAGE_SIZE_MASK) >> PAGE_SIZE_SHIFT) as u8;
        if page_size != 0 {
            return Err(PoolSpecError::PageSize(page_size + 12));
        }
        let lifetime =
            if flags & PERSIST == 0 { Lifetime::Ephemeral } else { Lifetime::Persistent };
        let sharing = if flags & SHARED == 0 { Sharing::Private } else { Sharing::Shared { uuid } };
        Ok(Self { lifetime, sharing })
    }

    /// tmem's flag word, as [`Self::from_flags`] reads it.
    pub const fn flags(&self) -> u32 {
        let lifetime = match self.lifetime {
            Lifetime::Persistent => PERSIST,
            Lifetime::Ephemeral => 0,
        };
        let sharing = match self.sharing {
            Sharing::Shared { .. } => SHARED,
            Sharing::Private => 0,
        };
        lifetime | sharing | (Self::VERSION as u32) << VERSION_SHIFT
    }

    /// The UUID of a shared pool.
    pub const fn uuid(&self) -> Option<u128> {
        match self.sharing {
            Sharing::Shared { uuid } => Some(uuid),
            Sharing::Private => None,
        }
    }
}
