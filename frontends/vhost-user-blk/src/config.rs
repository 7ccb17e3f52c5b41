//! What a disk is, and where it lies.

use std::path::PathBuf;
use std::time::Duration;

use spillway_types::ClientId;

/// What a disk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Swap space: a block lies in the store or in the file.
    Swap,
    /// A file system's disk: all blocks lie in the file, clean copies in the store.
    Cache,
}

/// How a disk is set up.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Its name, for the log.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Whose pages its blocks are.
    pub client: ClientId,
    /// Its length; 0 for the backing file's.
    pub bytes: u64,
    /// The backing file. The map lies beside it, with `.map` after its name.
    pub backing: PathBuf,
    /// What each request to the backing file waits, to stand for a slower disk.
    pub latency: Duration,
}
