//! Settings of stores and clients.

use std::path::PathBuf;
use std::time::Duration;

use spillway_tiers::{Backing, KeptSettings};

use crate::Error;

/// Least capacity: a chunk of frames for each lane, and an index.
const CAPACITY_MIN_BYTES: u64 = 1 << 20;
/// Largest capacity, limited by 32-bit numbers of 128-byte cells.
const CAPACITY_MAX_BYTES: u64 = 256 << 30;

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most bytes of memory that frames and index may take together.
    pub capacity_bytes: u64,
    /// The kind of memory of frames and index. A store in memfds can be reopened after its process
    /// was killed ([`Store::reopen`](crate::Store::reopen)), with its disk.
    pub backing: Backing,
    /// Whether [`Store::demote`](crate::Store::demote) and
    /// [`Store::put_compressed`](crate::Store::put_compressed) pack pages with LZ4.
    pub compress: bool,
    /// Whether a put that finds memory full packs or demotes pages itself before it is refused.
    /// Otherwise only callers with a [`Scratch`](crate::Scratch) do.
    pub makes_room: bool,
    /// Whether equal pages share a frame.
    pub dedup: Dedup,
    /// The disk tier, for pages that do not fit in memory.
    pub disk: Option<DiskConfig>,
}

impl Config {
    /// Anonymous memory of at most `capacity_bytes` that compresses; no dedup, no disk.
    pub const fn embedded(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            backing: Backing::Anonymous,
            compress: true,
            makes_room: false,
            dedup: Dedup::Off,
            disk: None,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub const fn check(&self) -> Result<(), Error> {
        match self.capacity_bytes {
            ..CAPACITY_MIN_BYTES => Err(Error::Config("less than 1 MiB of capacity")),
            CAPACITY_MIN_BYTES..=CAPACITY_MAX_BYTES => Ok(()),
            _ => Err(Error::Config("more than 256 GiB of capacity")),
        }
    }
}

/// Which equal pages share a frame. Only pages of persistent pools do: dropping an ephemeral page
/// must free its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// None.
    Off,
    /// Those of one client, and those of clients in the same sharing domain
    /// ([`ClientConfig::domain`]).
    PerClient,
}

/// Settings of the file tier.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Directory for unnamed files.
    pub dir: PathBuf,
    /// Most bytes that pages in files may take.
    pub capacity_bytes: u64,
    /// Additional delay of each read or write, to emulate a slower disk, ns.
    pub delay_ns: u64,
    /// How long a read or write may take before it counts as failed. Only for a store in memfds,
    /// whose disk has threads of its own.
    pub deadline: Duration,
}

impl DiskConfig {
    /// A tier of at most `capacity_bytes` in `dir`, without an emulated delay.
    pub const fn new(dir: PathBuf, capacity_bytes: u64) -> Self {
        Self { dir, capacity_bytes, delay_ns: 0, deadline: Duration::from_secs(5) }
    }

    /// Creates and closes a file like the store's, to check the directory.
    ///
    /// # Errors
    /// Why the directory can't be used.
    pub fn try_out(&self) -> std::io::Result<()> {
        spillway_tiers::try_directory(&self.dir)
    }

    /// The file settings of a kept store.
    pub(crate) const fn kept(&self) -> KeptSettings {
        let (capacity_bytes, deadline) = (self.capacity_bytes, self.deadline);
        KeptSettings { capacity_bytes, deadline, delay: Duration::from_nanos(self.delay_ns) }
    }
}

/// Settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Most pages that the client may hold; `u64::MAX` is no limit.
    pub target_pages: u64,
    /// Clients in the same domain share frames of equal content. `None` is a domain of its own.
    pub domain: Option<u32>,
    /// The owner's identification of the client. The store only keeps it with the client.
    pub label: u128,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { target_pages: u64::MAX, domain: None, label: 0 }
    }
}
