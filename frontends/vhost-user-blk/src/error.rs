//! Errors of a tmem disk.

use std::io;
use std::path::PathBuf;

use spillway_types::{PAGE_BYTES, Size};

use crate::chain::Malformed;

/// The reason why a disk can't be opened, or a request to it failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backing file or its map can't be opened or created.
    #[error("can't use {path}: {error}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The backing file is something else, such as a directory or a device.
    #[error("{0} is no regular file")]
    NotAFile(PathBuf),
    /// The configuration gives no size, and the file does not exist.
    #[error("{0} is not there: give the disk a size, and it is made")]
    NoSize(PathBuf),
    /// The size is 0, not a multiple of a page, or too large.
    #[error("a disk is a multiple of {PAGE_BYTES} bytes long and at most {max}, not {bytes} bytes", max = Size(crate::BYTES_MAX))]
    Size {
        /// The requested length.
        bytes: u64,
    },
    /// The backing file is shorter than the disk.
    #[error(
        "{path} has {file_bytes} bytes and the disk {bytes}: enlarge the file, remove it, or give the disk another size"
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its length.
        file_bytes: u64,
        /// The disk's.
        bytes: u64,
    },
    /// Not all of the backing file can be allocated.
    #[error("can't allocate all {bytes} of {path}: {error}; make room there, or give the disk another file or size", bytes = Size(*.bytes))]
    Allocate {
        /// The file.
        path: PathBuf,
        /// The disk's length.
        bytes: u64,
        /// The kernel's error.
        error: io::Error,
    },
    /// Another disk or another daemon uses the backing file.
    #[error("{0} is in use by another disk or daemon")]
    InUse(PathBuf),
    /// The map belongs to another disk, or is not a map.
    #[error("{path} {why}: remove it to begin anew, which loses what the disk holds")]
    Map {
        /// The map.
        path: PathBuf,
        /// The problem.
        why: &'static str,
    },
    /// A guest's memory lies in a file that could be shortened while it is mapped.
    #[error("its memory is no sealed memfd: give QEMU -object memory-backend-memfd,share=on")]
    NotSealed,
    /// A guest's memory lies in huge pages.
    #[error("its memory is made of huge pages (hugetlb), which can run out: leave hugetlb off")]
    HugePages,
    /// A part of a guest's memory extends beyond its file.
    #[error("its memory is shorter than it says")]
    ShortMemory,
    /// Parts of a guest's memory overlap, or can't be mapped.
    #[error("its memory can't be mapped: {0}")]
    MapMemory(String),
    /// A request violates virtio.
    #[error("the guest's driver made a request that virtio rules out")]
    Request,
    /// A request names memory that is not shared.
    #[error(
        "the guest's memory at {address:#x} is not shared with this daemon: back all of it by \
         memory-backend-memfd,share=on, also what is plugged in later"
    )]
    NotShared {
        /// The guest's address.
        address: u64,
    },
    /// A guest uses the disk, or may still use it.
    #[error("{0}")]
    Occupied(#[from] crate::attachment::Occupied),
    /// The value of a block was in a store that is gone.
    #[error("block {0} is lost with the store that held it")]
    Lost(u64),
    /// The backing file failed.
    #[error("the backing file: {0}")]
    File(#[from] io::Error),
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] spillway_store::Error),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Chain => Self::Request,
            Malformed::Memory { address } => Self::NotShared { address },
        }
    }
}
