//! Errors of a pool and of requests to it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::limits::{DEVICES_MAX, NAME_BYTES_MAX};

/// Why the pool can't be opened, or a request is refused. A refused request changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool's folder has no absolute path, or one that QEMU's options can't hold.
    #[error(
        "{dir:?} can't be the section pool's folder: give an absolute path, UTF-8, without commas"
    )]
    Dir {
        /// The folder.
        dir: PathBuf,
    },
    /// The pool's folder lies on a disk.
    #[error(
        "{} is neither on hugetlbfs nor on tmpfs (its file system is 0x{magic:x}): give a folder in a mount of \
         hugetlbfs, such as /dev/hugepages, or in /dev/shm",
        dir.display()
    )]
    FileSystem {
        /// The folder.
        dir: PathBuf,
        /// The file system's number (statfs(2)).
        magic: u64,
    },
    /// Sections can't have this size.
    #[error(
        "a section of {}: must be a multiple of {}, and not 0", Size(*section_bytes), Size(*unit_bytes)
    )]
    SectionSize {
        /// The requested size.
        section_bytes: u64,
        /// The unit of sizes.
        unit_bytes: u64,
    },
    /// The capacity is less than a section.
    #[error("a section pool of {}: must hold at least one section of {}", Size(*capacity_bytes), Size(*section_bytes))]
    Capacity {
        /// The requested capacity.
        capacity_bytes: u64,
        /// The size of a section.
        section_bytes: u64,
    },
    /// The mount has a limit below the capacity.
    #[error(
        "the mount of {} has room for {} more, the section pool takes {} more: mount it with a larger size=",
        dir.display(), Size(*room_bytes), Size(*wanted_bytes)
    )]
    MountTooSmall {
        /// The folder.
        dir: PathBuf,
        /// Free space of the mount.
        room_bytes: u64,
        /// The capacity, less the pool's present memory.
        wanted_bytes: u64,
    },
    /// There are too few huge pages.
    #[error(
        "the section pool takes {wanted} more huge pages of {}, {free} are free: \
         write {total} to /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
        Size(*page_bytes), page_bytes >> 10
    )]
    HugePages {
        /// Bytes of a page.
        page_bytes: u64,
        /// Pages that the pool needs beside those that it holds.
        wanted: u64,
        /// Pages that are neither used nor reserved.
        free: u64,
        /// Huge pages that the host needs in all.
        total: u64,
    },
    /// Another pool uses the folder.
    #[error("another process uses the section pool in {}", dir.display())]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
    /// The pool's folder contains something else.
    #[error("{} can't be part of the section pool: {why}", path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The name can't be a guest's.
    #[error(
        "{name:?} is no guest's name: 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 _ . -, and neither . nor .."
    )]
    GuestName {
        /// The name, truncated.
        name: String,
    },
    /// A guest can't have a device of this number.
    #[error("device {number}: a guest has devices 1 to {DEVICES_MAX}")]
    DeviceNumber {
        /// The requested number.
        number: u8,
    },
    /// Sizes that the pool can't reserve.
    #[error(
        "{} of guest memory: must be a multiple of {}, and not 0", Size(*bytes), Size(*unit_bytes)
    )]
    Unaligned {
        /// The requested size.
        bytes: u64,
        /// The unit of sizes.
        unit_bytes: u64,
    },
    /// The file has not been created.
    #[error("the section pool has no {}", path.display())]
    NoFile {
        /// Its path.
        path: PathBuf,
    },
    /// The file was created with another size.
    #[error("{} has {}, not {}: clear the guest first", path.display(), Size(*has_bytes), Size(*asked_bytes))]
    OtherSize {
        /// Its path.
        path: PathBuf,
        /// Its size.
        has_bytes: u64,
        /// The requested size.
        asked_bytes: u64,
    },
    /// The pool is exhausted.
    #[error("the section pool is dry: {} asked, {} free", Size(*asked_bytes), Size(*free_bytes))]
    Dry {
        /// The requested amount.
        asked_bytes: u64,
        /// The available amount: of the pool's capacity, or of the host's memory if that is less.
        free_bytes: u64,
    },
    /// This exceeds the device's capacity.
    #[error(
        "{} can't have {} more: {} of at most {} are set aside",
        path.display(), Size(*asked_bytes), Size(*set_aside_bytes), Size(*bound_bytes)
    )]
    BeyondBound {
        /// The device's file.
        path: PathBuf,
        /// The requested amount.
        asked_bytes: u64,
        /// Its reserved memory.
        set_aside_bytes: u64,
        /// Its capacity.
        bound_bytes: u64,
    },
    /// The guest's files are in use.
    #[error("{} is in use: the VM runs, or another process has the file open", path.display())]
    InUse {
        /// The open file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("can't {what} {}: {error}", path.display())]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

impl Error {
    /// For `map_err`: adds the operation and the path to a system call's error.
    pub(crate) fn io<E: Into<io::Error>>(
        what: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { what, path: path.to_owned(), error: error.into() }
    }
}

/// Displays bytes, in MiB if they are a multiple of it.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes % (1 << 20) == 0 => write!(to, "{} MiB", bytes >> 20),
            bytes => write!(to, "{bytes} bytes"),
        }
    }
}
