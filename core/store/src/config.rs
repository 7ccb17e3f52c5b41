//! How a store is set up.

use std::path::PathBuf;
use std::time::Duration;

use spillway_tiers::{Backing, KeptSettings};

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most bytes of memory that frames and index may take together.
    pub capacity_bytes: u64,
    /// What frames and index are made of. A store of memfds can be had back after the process was
    /// killed ([`Store::reopen`](crate::Store::reopen)), with its disk.
    pub backing: Backing,
    /// Whether [`Store::demote`](crate::Store::demote) and
    /// [`Store::put_compressed`](crate::Store::put_compressed) pack pages with LZ4.
    pub compress: bool,
    /// Whether a put that finds memory full packs raw pages itself, or moves pages down, before it is
    /// refused. Otherwise only callers that bring a [`Scratch`](crate::Scratch) do.
    pub makes_room: bool,
    /// Whether equal pages share a frame.
    pub dedup: Dedup,
    /// Where pages go that memory has no room for.
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
}

/// Whose equal pages share a frame. Pages of persistent pools only: an ephemeral page must free its
/// frame when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// Nobody's.
    Off,
    /// Those of one client; and those of clients that the operator put in one sharing domain
    /// ([`ClientConfig::domain`]).
    PerClient,
}

/// Settings of the file tier.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Directory in which nameless files are made.
    pub dir: PathBuf,
    /// Most bytes that pages in files may take.
    pub capacity_bytes: u64,
    /// Time that a read or write waits besides its own, to emulate a slower disk, ns.
    pub delay_ns: u64,
    /// How long a read or write may take before it counts as failed. Only for a store in memfds,
    /// whose disk has threads of its own.
    pub deadline: Duration,
}

impl DiskConfig {
    /// A tier of at most `capacity_bytes` in `dir`, as fast as it is.
    pub const fn new(dir: PathBuf, capacity_bytes: u64) -> Self {
        Self { dir, capacity_bytes, delay_ns: 0, deadline: Duration::from_secs(5) }
    }

    /// Makes a file as the store will and closes it again, to see that it can be done in the directory.
    ///
    /// # Errors
    /// Why it can't.
    pub fn try_out(&self) -> std::io::Result<()> {
        spillway_tiers::try_directory(&self.dir)
    }

    /// How the file of a store that is kept is used.
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
    /// What the store's owner knows the client by. The store only keeps it, with the client.
    pub label: u128,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { target_pages: u64::MAX, domain: None, label: 0 }
    }
}
