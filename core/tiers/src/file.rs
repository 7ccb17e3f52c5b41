//! Pages in unnamed files, with checksums in memory.
//!
//! A file is an array of slots of one page. Which are in use, and the XXH3-64 checksum of each, is
//! known in memory only: the files die with their last descriptor. Pages are written several at a
//! time, past the page cache (`O_DIRECT`) where the file system can.
//!
//! The tier of a store that outlives its process is [`KeptFile`].

mod disk;
mod kept;
mod slots;
mod taken;
mod trouble;
mod turns;
mod workers;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::Timespec;

use crate::PageBuf;
use crate::budget::Budget;
use crate::sync::{AtomicI32, AtomicU64, Lock, Ordering};
use spillway_platform::page_file::{self, PageFile, TransferError};
use spillway_types::PAGE_BYTES;

pub use disk::{Disk, DiskRead};
pub use kept::{DiskCounters, KeptFile, KeptSettings};
use slots::{GROUP_SLOTS, Slots, checksum};
pub use trouble::{DiskError, DiskTrouble};
pub use turns::{Moving, Turn, Turns};

/// Files that there can be at the same time: one that grows, the others sealed.
pub const FILES_MAX: usize = 256;
/// Slots of a file.
pub const SLOTS_MAX: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 27;
/// Most pages of one write.
pub const WRITE_PAGES_MAX: usize = 32;

/// Pages written: slot `first` and those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Which file.
    pub file: u8,
    /// The slot of the first page.
    pub first: u32,
}

/// A file, or the place for one.
#[derive(Debug, Default)]
struct File {
    descriptor: Option<RawFd>,
    sealed: bool,
    /// Slots in use, reads under way, and one for a file that is not sealed. Nobody left: closed.
    references: u32,
    /// Kept when the file is closed, for the next one at this place.
    slots: Option<Slots>,
}

/// The file tier.
#[derive(Debug)]
pub struct Files {
    directory: CString,
    pages_max: u64,
    pages: AtomicU64,
    reads: AtomicU64,
    /// As many as [`FILES_MAX`], on the heap: programs with a small stack open a store.
    files: Box<[Lock<File>]>,
    /// The file that grows; `None` before the first write and after sealing.
    current: Lock<Option<u8>>,
    errno: AtomicI32,
    delay_ns: u64,
}

impl Files {
    /// A tier of at most `capacity_bytes` in `directory`. Makes a file there and closes it, to see
    /// that it can be done. Each read and write waits `delay_ns` besides its own time.
    pub fn open(directory: &Path, capacity_bytes: u64, delay_ns: u64) -> io::Result<Self> {
        try_directory(directory)?;
        let directory = CString::new(directory.as_os_str().as_bytes())?;
        Ok(Self {
            directory,
            pages_max: capacity_bytes / PAGE_BYTES as u64,
            pages: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            files: (0..FILES_MAX).map(|_| Lock::default()).collect(),
            current: Lock::new(None),
            errno: AtomicI32::new(0),
            delay_ns,
        })
    }

    /// Emulates a slower disk.
    fn take_time(&self) {
        if self.delay_ns == 0 {
            return;
        }
        let time = Timespec {
            tv_sec: (self.delay_ns / 1_000_000_000) as i64,
            tv_nsec: (self.delay_ns % 1_000_000_000) as i64,
        };
        // A signal may shorten it.
        let _ = rustix::thread::nanosleep(&time);
    }

    /// Pages in files.
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Pages that were read back.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Why pages were last refused; cleared by the call.
    pub fn take_error(&self) -> Option<Errno> {
        match self.errno.swap(0, Ordering::Relaxed) {
            0 => None,
            errno => Some(Errno::from_raw_os_error(errno)),
        }
    }

    fn fail(&self, errno: Errno) {
        self.errno.store(errno.raw_os_error(), Ordering::Relaxed);
    }

    /// Writes up to [`WRITE_PAGES_MAX`] pages to slots in a row. `None` when the tier is full or
    /// the write fails; [`Self::take_error`] tells which.
    pub fn write(&self, pages: &[&[u8; PAGE_BYTES]], budget: &Budget) -> Option<Written> {
        let count = pages.len().min(WRITE_PAGES_MAX) as u32;
        let reserved = self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            Some(used + u64::from(count)).filter(|&sum| sum <= self.pages_max)
        });
        if reserved.is_err() {
            self.fail(Errno::NOSPC);
            return None;
        }
        self.take_time();
        let written = self.take_slots(count, budget).and_then(|(at, descriptor)| {
            // SAFETY: there are references to the file, so the descriptor stays open.
            let file = PageFile::new(unsafe { BorrowedFd::borrow_raw(descriptor) });
            match file.write(at.first.into(), &pages[..count as usize], |page| *page) {
                Ok(()) => Ok(at),
                Err(error) => {
                    self.give_slots(at, count);
                    Err(refusal(error))
                }
            }
        });
        match written {
            Ok(at) => {
                let mut file = self.files[usize::from(at.file)].lock();
                if let Some(slots) = &mut file.slots {
                    for (slot, page) in (at.first..).zip(pages) {
                        slots.set_sum(slot as usize, checksum(page, slot.into()));
                    }
                }
                Some(at)
            }
            Err(errno) => {
                self.fail(errno);
                self.pages.fetch_sub(u64::from(count), Ordering::Relaxed);
                None
            }
        }
    }

    /// Takes `count` free slots in a row, in the file that grows.
    fn take_slots(&self, count: u32, budget: &Budget) -> Result<(Written, RawFd), Errno> {
        let mut current = self.current.lock();
        let number = match *current {
            Some(number) => number,
            None => {
                let number = self.start_file()?;
                *current = Some(number);
                number
            }
        };
        let mut file = self.files[usize::from(number)].lock();
        let slots = file.slots.as_mut();
        let first = slots.and_then(|slots| slots.take(count as usize, budget));
        let first = first.ok_or(Errno::NOMEM)? as u32;
        file.references += count;
        let descriptor = file.descriptor.ok_or(Errno::BADF)?;
        Ok((Written { file: number, first }, descriptor))
    }

    fn start_file(&self) -> Result<u8, Errno> {
        let is_free = |number: &usize| self.files[*number].lock().references == 0;
        let number = (0..FILES_MAX).find(is_free).ok_or(Errno::MFILE)?;
        let descriptor = nameless(&self.directory)?;
        let mut file = self.files[number].lock();
        match &mut file.slots {
            Some(slots) => slots.clear(),
            None => {
                let slots = SLOTS_MAX.min(self.pages_max as usize * 2 + GROUP_SLOTS);
                file.slots = Some(Slots::reserve(slots).map_err(|_| Errno::NOMEM)?);
            }
        }
        file.descriptor = Some(descriptor.into_raw_fd());
        file.sealed = false;
        file.references = 1;
        Ok(number as u8)
    }

    fn give_slots(&self, at: Written, count: u32) {
        for slot in at.first..at.first + count {
            self.give_slot(at.file, slot);
        }
    }

    /// Marks a slot as free. Gives the room of a group without used slots back to the disk.
    fn give_slot(&self, number: u8, slot: u32) {
        let mut file = self.files[usize::from(number)].lock();
        file.references -= 1;
        if file.sealed {
            // The other side of a fork still reads the file.
            file.close_unused();
            return;
        }
        let Some(descriptor) = file.descriptor else { return };
        let group = file.slots.as_mut().and_then(|slots| slots.give(slot as usize));
        if let Some(group) = group {
            // No slot of the group is to be had until it is punched out, which takes long.
            file.references += 1;
            drop(file);
            // SAFETY: there is a reference to the file, so the descriptor stays open.
            punch(unsafe { BorrowedFd::borrow_raw(descriptor) }, group);
            file = self.files[usize::from(number)].lock();
            file.references -= 1;
            if let Some(slots) = &mut file.slots {
                slots.punched(group);
            }
            file.close_unused();
        }
    }

    /// Frees a slot.
    pub fn free(&self, file: u8, slot: u32) {
        self.give_slot(file, slot);
        self.pages.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes the checksum of a slot in use, and keeps its file open until [`SlotRead::read`] is
    /// done. The slot itself may be freed and used anew meanwhile.
    pub fn hold(&self, file: u8, slot: u32) -> SlotRead<'_> {
        let mut entry = self.files[usize::from(file)].lock();
        entry.references += 1;
        let sum = entry.slots.as_ref().map_or(0, |slots| slots.sum(slot as usize));
        SlotRead { files: self, file, slot, sum }
    }

    /// Makes all files read-only: slots are neither reused nor punched out, and later writes go to
    /// a new file.
    pub fn seal(&self) {
        let mut current = self.current.lock();
        if let Some(number) = current.take() {
            let mut file = self.files[usize::from(number)].lock();
            file.sealed = true;
            file.references -= 1;
            file.close_unused();
        }
    }

    /// Replaces the descriptors of sealed files, without closing the old ones, which belong to another table.
    /// A file that is not sealed was begun since, in the new one.
    pub fn reopen(&self, mut open: impl FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        for file in &self.files {
            let mut file = file.lock();
            if let Some(descriptor) = file.descriptor.filter(|_| file.sealed) {
                file.descriptor = Some(open(descriptor as u64)?.into_raw_fd());
            }
        }
        Ok(())
    }

    /// Numbers of the open descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.files.iter().filter_map(|file| file.lock().descriptor)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.files {
            file.lock().close();
        }
    }
}

impl File {
    fn close_unused(&mut self) {
        if self.sealed && self.references == 0 {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            // SAFETY: the file owns its descriptor, and gives it up here.
            unsafe { rustix::io::close(descriptor) };
        }
    }
}

/// A read that may begin without a lock.
#[derive(Debug)]
pub struct SlotRead<'a> {
    files: &'a Files,
    file: u8,
    slot: u32,
    sum: u64,
}

impl SlotRead<'_> {
    /// The checksum that was noted.
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Reads the page; false when it is not what was written. (The slot may have been reused since
    /// it was looked up: look again before calling that corrupt.)
    pub fn read(&self, page: &mut PageBuf) -> io::Result<bool> {
        let descriptor = self.files.files[usize::from(self.file)].lock().descriptor;
        let Some(descriptor) = descriptor else { return Ok(false) };
        // SAFETY: the descriptor stays open while this holds a reference to the file.
        let file = PageFile::new(unsafe { BorrowedFd::borrow_raw(descriptor) });
        self.files.take_time();
        match file.read_page(self.slot.into(), &mut page.0) {
            Ok(()) => {}
            Err(TransferError::Short) => return Ok(false),
            Err(TransferError::Os(errno)) => return Err(errno.into()),
        }
        self.files.reads.fetch_add(1, Ordering::Relaxed);
        Ok(checksum(&page.0, self.slot.into()) == self.sum)
    }
}

impl Drop for SlotRead<'_> {
    fn drop(&mut self) {
        let mut file = self.files.files[usize::from(self.file)].lock();
        file.references -= 1;
        file.close_unused();
    }
}

/// Gives the room of a group back to the disk. Best effort: where holes cannot be punched the file
/// keeps its size until it is closed.
fn punch(file: impl AsFd, group: usize) {
    let _ = PageFile::new(file).punch((group * GROUP_SLOTS) as u64, GROUP_SLOTS as u64);
}

/// Why pages were not written: a disk that takes less than a page is full.
const fn refusal(error: TransferError) -> Errno {
    match error {
        TransferError::Short => Errno::NOSPC,
        TransferError::Os(errno) => errno,
    }
}

/// Makes a file as a tier does and closes it, to see that it can be done in this directory.
///
/// # Errors
/// Why it can't.
pub fn try_directory(directory: &Path) -> io::Result<()> {
    nameless(&CString::new(directory.as_os_str().as_bytes())?)?;
    Ok(())
}

/// Opens a new file that has no name.
fn nameless(directory: &CString) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let open = |flags: OFlags| match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        // The file system has no nameless files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => unlinked(directory, flags, mode),
        other => other,
    };
    // Not direct on tmpfs of older kernels.
    page_file::open_direct(|direct| open(flags | direct)).map(|(file, _)| file)
}

/// Opens a new file under a random name and takes the name away.
fn unlinked(directory: &CString, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let at = rustix::fs::open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut name = *b"spillway-0123456789abcdef";
    for (letter, byte) in name["spillway-".len()..].iter_mut().zip(random) {
        *letter = b'a' + byte % 26;
    }
    let name = name.as_slice();
    let file = rustix::fs::openat(&at, name, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    rustix::fs::unlinkat(&at, name, rustix::fs::AtFlags::empty())?;
    Ok(file)
}
