//! Why a device can't be made, or a slab not be moved.

use std::io;
use std::path::PathBuf;

/// What can go wrong besides I/O through the device, whose errors are `spillway_block::Error`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A slab is no power of two from 1 MiB to 1 GiB.
    #[error("slabs are a power of two from 1 MiB to 1 GiB long, not {0} bytes")]
    SlabBytes(u64),
    /// A device has at least one slab, and each at least one place.
    #[error("slab {0} has no place")]
    NoPlace(u32),
    /// There is no such slab, or no such copy of it.
    #[error("the device has no copy {copy} of slab {slab}")]
    NoSlab {
        /// Which slab.
        slab: u32,
        /// Which of its copies.
        copy: usize,
    },
    /// Both copies of a slab would lie with one holder, or a copy in the place of a lost one.
    #[error("slab {0} has or had a copy in that place")]
    SamePlace(u32),
    /// The slab is being moved already.
    #[error("slab {0} is being moved already")]
    Moving(u32),
    /// The new place failed before all of the slab was there; the slab stays where it was.
    #[error("the new place of slab {0} failed; the slab stays where it is")]
    PlaceLost(u32),
    /// No copy of a page could be read, so the slab stays where it was.
    #[error("page {0} could not be read from any place; its slab stays where it is")]
    Unreadable(u64),
    /// The file can't be opened.
    #[error("{path}: {error}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process is just opening the file.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// The file can't have all its blocks.
    #[error(
        "{path}: can't set {bytes} bytes aside: {error}; free space there or name another place"
    )]
    Allocate {
        /// Which.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Why.
        error: io::Error,
    },
    /// The disk has too little room.
    #[error(
        "{path} has {has} bytes and {bytes} are needed: name a larger disk, or set lend.backup_size"
    )]
    Small {
        /// Which.
        path: PathBuf,
        /// What is needed.
        bytes: u64,
        /// What it has.
        has: u64,
    },
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}
