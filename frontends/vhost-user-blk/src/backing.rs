//! The backing file of a disk: fully allocated, read and written by direct I/O.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    Access, FallocateFlags, FlockOperation, Mode, OFlags, access, fallocate, fdatasync, flock, open,
};
use rustix::io::Errno;
use spillway_platform::page_file::{self, PageFile};
use spillway_store::PageBuf;
use spillway_types::PAGE_BYTES;

use crate::BYTES_MAX;
use crate::config::{DiskConfig, Kind};
use crate::error::Error;
use crate::map::Map;

/// A disk's backing file.
#[derive(Debug)]
pub struct Backing {
    file: PageFile<File>,
    blocks: u64,
    is_new: bool,
    /// Delay of each request to the file, to simulate a slower disk.
    latency: Duration,
}

impl Backing {
    /// Opens or creates the file, and allocates all its blocks.
    pub fn open(config: &DiskConfig) -> Result<Self, Error> {
        let path = &config.backing;
        let wrong = |error: Errno| Error::Open { path: path.clone(), error: error.into() };
        let made = !path.exists();
        if made && config.bytes == 0 {
            return Err(Error::NoSize(path.clone()));
        }
        let file = open_direct(path).map_err(wrong)?;
        let allocated = Self::allocate(config, &file);
        if made && matches!(allocated, Err(ref error) if !matches!(error, Error::InUse(_))) {
            // Removes the new file if its blocks can't be allocated. The error of the allocation is the one to report.
            let _ = std::fs::remove_file(path);
        }
        let blocks = allocated? / PAGE_BYTES as u64;
        Ok(Self { file: PageFile::new(file), blocks, is_new: made, latency: config.latency })
    }

    /// Allocates all blocks of the file. Returns the disk's length in bytes.
    fn allocate(config: &DiskConfig, file: &File) -> Result<u64, Error> {
        let path = &config.backing;
        let found = file.metadata().map_err(|error| Error::Open { path: path.clone(), error })?;
        if !found.is_file() {
            return Err(Error::NotAFile(path.clone()));
        }
        flock(file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::InUse(path.clone()))?;
        let bytes = length(path, config.bytes, found.len())?;
        fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(|error| Error::Allocate {
            path: path.clone(),
            bytes,
            error: error.into(),
        })?;
        Ok(bytes)
    }

    /// Whether [`Self::open`] created it.
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Its length in blocks.
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads the blocks from `first`.
    pub fn read(&self, first: u64, pages: &mut [PageBuf]) -> io::Result<()> {
        self.wait();
        Ok(self.file.read(first, pages, |page| &mut page.0)?)
    }

    /// Writes the blocks from `first`.
    pub fn write(&self, first: u64, pages: &[PageBuf]) -> io::Result<()> {
        self.wait();
        Ok(self.file.write(first, pages, |page| &page.0)?)
    }

    /// Fills blocks with zeros, and keeps them allocated.
    pub fn zero(&self, first: u64, count: usize) -> io::Result<()> {
        let (at, bytes) = (first * PAGE_BYTES as u64, (count * PAGE_BYTES) as u64);
        match fallocate(&self.file, FallocateFlags::ZERO_RANGE, at, bytes) {
            Err(Errno::OPNOTSUPP) => {
                let zeros = vec![PageBuf::ZERO; count];
                self.write(first, &zeros)
            }
            done => Ok(done?),
        }
    }

    /// Makes completed writes durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.file)?)
    }

    fn wait(&self) {
        if !self.latency.is_zero() {
            std::thread::sleep(self.latency);
        }
    }
}

/// Checks that a disk can be opened over a file that exists or would be created, and its map. Changes nothing.
///
/// # Errors
/// Those of [`crate::Disk::open`] for the files. Not found here, only when the disk is opened: another process uses the
/// file, or the file system lacks space.
pub fn check(path: &Path, bytes: u64, kind: Kind) -> Result<(), Error> {
    let cant_open = |error| Error::Open { path: path.to_owned(), error };
    match path.metadata() {
        Ok(found) if !found.is_file() => Err(Error::NotAFile(path.to_owned())),
        Ok(found) => {
            let bytes = length(path, bytes, found.len())?;
            OpenOptions::new().read(true).write(true).open(path).map_err(cant_open)?;
            Map::check(&map_path(path), bytes / PAGE_BYTES as u64, kind)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && bytes == 0 => {
            Err(Error::NoSize(path.to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let can_make =
                access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK | Access::EXEC_OK);
            can_make.map_err(|error| cant_open(error.into()))?;
            length(path, bytes, 0).map(drop)
        }
        Err(error) => Err(cant_open(error)),
    }
}

/// The path of a disk's map.
pub fn map_path(backing: &Path) -> PathBuf {
    let mut path = backing.as_os_str().to_owned();
    path.push(".map");
    path.into()
}

/// A disk's length: `bytes`, or the file's length if `bytes` is 0.
fn length(path: &Path, bytes: u64, file_bytes: u64) -> Result<u64, Error> {
    let bytes = if bytes == 0 { file_bytes } else { bytes };
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES as u64) || bytes > BYTES_MAX {
        return Err(Error::Size { bytes });
    }
    // A file that was just created has no length yet.
    if file_bytes != 0 && file_bytes < bytes {
        return Err(Error::TooSmall { path: path.to_owned(), file_bytes, bytes });
    }
    Ok(bytes)
}

/// Opens the file for direct I/O, if the file system supports it.
fn open_direct(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let (file, is_direct) = page_file::open_direct(|direct| open(path, flags | direct, mode))?;
    if !is_direct {
        tracing::warn!(
            "{}: its file system has no direct I/O, so the page cache holds blocks a second time",
            path.display()
        );
    }
    Ok(file.into())
}
