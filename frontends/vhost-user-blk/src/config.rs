//! The settings of a disk.

use std::path::PathBuf;
use std::time::Duration;

use spillway_types::ClientId;

/// The purpose of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Swap space: a block lies in the store or in the file.
    Swap,
    /// A file system's disk: all blocks lie in the file, clean copies in the store.
    Cache,
}

/// The settings of a disk.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Its name, for the log.
    pub name: String,
    /// Its purpose.
    pub kind: Kind,
    /// The client that its blocks count towards.
    pub client: ClientId,
    /// Its length; 0 for the length of the backing file.
    pub bytes: u64,
    /// The backing file. The map lies beside it, with `.map` appended to the name.
    pub backing: PathBuf,
    /// Delay of each request to the backing file, to simulate a slower disk.
    pub latency: Duration,
}
