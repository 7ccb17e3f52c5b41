//! The local file with copies of slabs: fully allocated, and accessed past the page cache. A disk
//! or partition can take its place: then no file system needs memory while pages are written.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, open};
use rustix::io::Errno;
use spillway_platform::page_file::{self, PageFile};
use spillway_types::PAGE_BYTES;

use crate::error::Error;
use crate::page::Page;
use crate::write_back::Pages;

/// How long the threads of a device that was just closed may still hold its disk, and how often
/// this tries again.
const LEAVES: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// A preallocated file that ends with its device. It is unlinked once it is open: its contents are
/// sealed with a key that nobody has afterwards.
#[derive(Debug)]
pub struct BackupFile {
    file: PageFile<File>,
    pages: u64,
}

impl BackupFile {
    /// Whether the path is that of a disk or a partition.
    pub fn is_disk(path: &Path) -> bool {
        path.metadata().is_ok_and(|found| found.file_type().is_block_device())
    }

    /// Creates the file, in place of one that a killed daemon left, and allocates `bytes` for it,
    /// so that no write meets a full disk. A disk is used as it is, if nobody else uses it.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::InUse`], [`Error::Allocate`], [`Error::Small`].
    pub fn open(path: &Path, bytes: u64) -> Result<Self, Error> {
        if Self::is_disk(path) {
            return Self::open_disk(path, bytes);
        }
        let file = open_direct(path)
            .map_err(|error| Error::Open { path: path.to_owned(), error: error.into() })?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::InUse(path.to_owned()))?;
        let allocated = fallocate(&file, FallocateFlags::empty(), 0, bytes);
        std::fs::remove_file(path).map_err(|error| Error::Open { path: path.to_owned(), error })?;
        allocated.map_err(|error| {
            let error = error.into();
            Error::Allocate { path: path.to_owned(), bytes, error }
        })?;
        Ok(Self { file: PageFile::new(file), pages: bytes / PAGE_BYTES as u64 })
    }

    fn open_disk(path: &Path, bytes: u64) -> Result<Self, Error> {
        // EXCL: the kernel refuses a disk that is mounted, swapped onto or opened exclusively by
        // others.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL | OFlags::DIRECT;
        let until = Instant::now() + LEAVES;
        let opened = loop {
            match open(path, flags, Mode::empty()) {
                Err(Errno::BUSY) if Instant::now() < until => thread::sleep(LOOK),
                opened => break opened,
            }
        };
        let mut file = match opened {
            Err(Errno::BUSY) => return Err(Error::InUse(path.to_owned())),
            opened => File::from(
                opened
                    .map_err(|error| Error::Open { path: path.to_owned(), error: error.into() })?,
            ),
        };
        let has = file.seek(SeekFrom::End(0))?;
        if has < bytes {
            return Err(Error::Small { path: path.to_owned(), bytes, has });
        }
        Ok(Self { file: PageFile::new(file), pages: bytes / PAGE_BYTES as u64 })
    }
}

impl Pages for BackupFile {
    fn count(&self) -> u64 {
        self.pages
    }

    fn read(&self, first: u64, pages: &mut [Page]) -> io::Result<()> {
        Ok(self.file.read(first, pages, |page| &mut page.0)?)
    }

    fn write(&self, first: u64, pages: &[Page]) -> io::Result<()> {
        Ok(self.file.write(first, pages, |page| &page.0)?)
    }
}

/// Opens the file past the page cache if its file system can do that.
fn open_direct(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let (file, is_direct) = page_file::open_direct(|direct| open(path, flags | direct, mode))?;
    if !is_direct {
        tracing::warn!(
            "{}: its file system has no direct I/O, so writing pages to it takes memory; put it on another",
            path.display()
        );
    }
    Ok(file.into())
}
