//! A local file as an array of pages, read and written at their places.
//!
//! Disks, backup files and file tiers keep pages in files, and each has to handle the same cases: a
//! system call that transfers only some of the pages, a signal, a file that ends early, a file
//! system without direct I/O. This module handles them, without errno or the heap.

use std::io::{self, IoSlice, IoSliceMut};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::{Errno, pread, preadv, pwrite, pwritev};

use crate::PAGE_SIZE;

/// Most pages of one system call.
const CALL_PAGES: usize = 64;

/// The reason why not all bytes were transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The file ends before the last byte, or accepts no more.
    Short,
    /// The system call failed.
    Os(Errno),
}

impl From<TransferError> for io::Error {
    /// [`io::ErrorKind::UnexpectedEof`], or the system call's error.
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Short => io::ErrorKind::UnexpectedEof.into(),
            TransferError::Os(errno) => errno.into(),
        }
    }
}

/// A file of pages. It does no locking: a page that is read while it is written may be half new.
#[derive(Debug)]
pub struct PageFile<F>(F);

impl<F: AsFd> PageFile<F> {
    /// The pages of an open file.
    pub const fn new(file: F) -> Self {
        Self(file)
    }

    /// Reads adjacent pages from `first` on. `bytes` finds the memory of a page.
    ///
    /// # Errors
    /// The file ends inside or before one of the pages; as preadv(2). Some of the pages may have
    /// been read.
    pub fn read<P>(
        &self,
        first: u64,
        pages: &mut [P],
        bytes: impl Fn(&mut P) -> &mut [u8; PAGE_SIZE],
    ) -> Result<(), TransferError> {
        let mut done = 0;
        while done < pages.len() {
            let rest = &mut pages[done..];
            let count = rest.len().min(CALL_PAGES);
            let mut parts: [IoSliceMut<'_>; CALL_PAGES] =
                core::array::from_fn(|_| IoSliceMut::new(&mut []));
            for (part, page) in parts.iter_mut().zip(rest) {
                *part = IoSliceMut::new(bytes(page));
            }
            done += whole(preadv(&self.0, &mut parts[..count], offset(first, done)?))?;
        }
        Ok(())
    }

    /// Writes adjacent pages from `first` on. `bytes` finds the memory of a page.
    ///
    /// # Errors
    /// The file takes less than one page; as pwritev(2). Some of the pages may have been written.
    pub fn write<P>(
        &self,
        first: u64,
        pages: &[P],
        bytes: impl Fn(&P) -> &[u8; PAGE_SIZE],
    ) -> Result<(), TransferError> {
        let mut done = 0;
        while done < pages.len() {
            let rest = &pages[done..];
            let count = rest.len().min(CALL_PAGES);
            let mut parts = [IoSlice::new(&[]); CALL_PAGES];
            for (part, page) in parts.iter_mut().zip(rest) {
                *part = IoSlice::new(bytes(page));
            }
            done += whole(pwritev(&self.0, &parts[..count], offset(first, done)?))?;
        }
        Ok(())
    }

    /// Reads one page.
    ///
    /// # Errors
    /// As [`read_exact_at`].
    pub fn read_page(&self, page: u64, bytes: &mut [u8; PAGE_SIZE]) -> Result<(), TransferError> {
        read_exact_at(&self.0, bytes, offset(page, 0)?)
    }

    /// Frees the disk space of pages. They read as zeros afterwards, and the file keeps
    /// its length.
    ///
    /// # Errors
    /// As fallocate(2): the file system may not support holes.
    pub fn punch(&self, first: u64, count: u64) -> Result<(), Errno> {
        let bytes = |pages: u64| pages.checked_mul(PAGE_SIZE as u64).ok_or(Errno::INVAL);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.0, mode, bytes(first)?, bytes(count)?)
    }
}

impl<F: AsFd> AsFd for PageFile<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Fills `bytes` from an offset of a file.
///
/// # Errors
/// The file ends before; as pread(2). Some of the bytes may have been read.
pub fn read_exact_at(
    file: impl AsFd,
    mut bytes: &mut [u8],
    mut offset: u64,
) -> Result<(), TransferError> {
    while !bytes.is_empty() {
        match pread(&file, &mut *bytes, offset) {
            Ok(0) => return Err(TransferError::Short),
            Ok(read) => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(TransferError::Os(errno)),
        }
    }
    Ok(())
}

/// Writes all of `bytes` at an offset of a file.
///
/// # Errors
/// The file takes no more; as pwrite(2). Some of the bytes may have been written.
pub fn write_all_at(
    file: impl AsFd,
    mut bytes: &[u8],
    mut offset: u64,
) -> Result<(), TransferError> {
    while !bytes.is_empty() {
        match pwrite(&file, bytes, offset) {
            Ok(0) => return Err(TransferError::Short),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(TransferError::Os(errno)),
        }
    }
    Ok(())
}

/// Calls `open` so that the file is accessed past the page cache (`O_DIRECT`), and without where
/// its file system has no direct I/O. Also returns whether it is direct.
///
/// # Errors
/// Those of `open`.
pub fn open_direct(
    open: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
) -> Result<(OwnedFd, bool), Errno> {
    match open(OFlags::DIRECT) {
        Err(Errno::INVAL) => Ok((open(OFlags::empty())?, false)),
        opened => Ok((opened?, true)),
    }
}

/// The offset of a page in the file, bytes.
fn offset(first: u64, done: usize) -> Result<u64, TransferError> {
    let page = first.checked_add(done as u64);
    let bytes = page.and_then(|page| page.checked_mul(PAGE_SIZE as u64));
    bytes.ok_or(TransferError::Os(Errno::INVAL))
}

/// The number of whole pages that a call transferred. Part of a page is transferred again with the
/// pages after it; if there is no more than a part, the call was [`TransferError::Short`].
fn whole(done: Result<usize, Errno>) -> Result<usize, TransferError> {
    match done {
        Err(Errno::INTR) => Ok(0),
        Err(errno) => Err(TransferError::Os(errno)),
        Ok(bytes) if bytes < PAGE_SIZE => Err(TransferError::Short),
        Ok(bytes) => Ok(bytes / PAGE_SIZE),
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;

    use super::*;
    use rustix::fs::{
        MemfdFlags, Mode, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create,
    };

    type Page = [u8; PAGE_SIZE];

    fn memory_file(bytes: usize) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("pages", flags).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        file
    }

    /// More than one system call transfers.
    fn many() -> Vec<Page> {
        (0..2 * CALL_PAGES + 3).map(|number| [number as u8; PAGE_SIZE]).collect()
    }

    fn read(
        file: &PageFile<OwnedFd>,
        first: u64,
        count: usize,
    ) -> Result<Vec<Page>, TransferError> {
        let mut pages = vec![[0xee; PAGE_SIZE]; count];
        file.read(first, &mut pages, |page| page)?;
        Ok(pages)
    }

    #[test]
    fn pages_come_back_from_their_places() {
        let (file, pages) = (PageFile::new(memory_file(0)), many());
        file.write(5, &pages, |page| page).unwrap();
        assert_eq!(read(&file, 5, pages.len()).unwrap(), pages);
        assert_eq!(read(&file, 0, 5).unwrap(), [[0; PAGE_SIZE]; 5]);
        let mut one = [0xee; PAGE_SIZE];
        file.read_page(5 + 70, &mut one).unwrap();
        assert_eq!(one, pages[70]);
        file.write(6, &[&pages[9]], |page| *page).unwrap();
        assert_eq!(read(&file, 5, 3).unwrap(), [pages[0], pages[9], pages[2]]);
        file.write(u64::MAX, &[], |page: &Page| page).unwrap();
        assert_eq!(fstat(&file).unwrap().st_size as usize, (5 + pages.len()) * PAGE_SIZE);
    }

    #[test]
    fn a_file_that_ends_early_is_short() {
        let file = PageFile::new(memory_file(2 * PAGE_SIZE + 100));
        let mut one = [0; PAGE_SIZE];
        assert!(read(&file, 0, 2).is_ok());
        for (first, count) in [(0, 3), (2, 1), (3, 1), (1000, CALL_PAGES + 1)] {
            assert_eq!(read(&file, first, count), Err(TransferError::Short), "{first}+{count}");
        }
        for page in [2, 3, 1000] {
            assert_eq!(file.read_page(page, &mut one), Err(TransferError::Short), "{page}");
        }
        let end = 2 * PAGE_SIZE as u64;
        assert_eq!(read_exact_at(&file, &mut one[..100], end), Ok(()));
        assert_eq!(read_exact_at(&file, &mut one[..101], end), Err(TransferError::Short));
        assert_eq!(
            io::Error::from(TransferError::Short).kind(),
            io::ErrorKind::UnexpectedEof,
            "what std says of a file that ends"
        );
    }

    #[test]
    fn a_part_of_a_page_is_no_progress() {
        assert_eq!(whole(Ok(3 * PAGE_SIZE + 1)), Ok(3));
        assert_eq!(whole(Ok(PAGE_SIZE)), Ok(1));
        for bytes in [0, 1, PAGE_SIZE - 1] {
            assert_eq!(whole(Ok(bytes)), Err(TransferError::Short), "{bytes}");
        }
        assert_eq!(whole(Err(Errno::INTR)), Ok(0), "a signal is no error");
        assert_eq!(whole(Err(Errno::IO)), Err(TransferError::Os(Errno::IO)));
    }

    /// The call ends before the page that the seal refuses, and the next one has its error.
    #[test]
    fn a_short_write_goes_on_and_ends_with_its_error() {
        let file = memory_file(3 * PAGE_SIZE);
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        let (file, pages) = (PageFile::new(file), many());
        let refused = Err(TransferError::Os(Errno::PERM));
        assert_eq!(file.write(1, &pages[1..], |page| page), refused);
        assert_eq!(read(&file, 0, 3).unwrap(), [[0; PAGE_SIZE], pages[1], pages[2]]);
        let bytes = pages[7..11].as_flattened();
        assert_eq!(write_all_at(&file, bytes, 0), refused);
        assert_eq!(read(&file, 0, 3).unwrap(), pages[7..10]);
    }

    #[test]
    fn errors_of_the_system_are_told() {
        let both = memory_file(PAGE_SIZE);
        let again = |flags| {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&both));
            PageFile::new(rustix::fs::open(path, flags, Mode::empty()).unwrap())
        };
        let wrong = Err(TransferError::Os(Errno::BADF));
        let mut one = [1; PAGE_SIZE];
        let closed_to_writers = again(OFlags::RDONLY);
        assert_eq!(closed_to_writers.write(0, &[one], |page| page), wrong);
        assert_eq!(write_all_at(&closed_to_writers, &one, 0), wrong);
        assert_eq!(closed_to_writers.punch(0, 1), Err(Errno::BADF));
        let closed_to_readers = again(OFlags::WRONLY);
        assert_eq!(read(&closed_to_readers, 0, 1).map(drop), wrong);
        assert_eq!(closed_to_readers.read_page(0, &mut one), wrong);
        let told = io::Error::from(TransferError::Os(Errno::IO));
        assert_eq!(told.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }

    #[test]
    fn pages_beyond_every_file_are_refused() {
        let file = PageFile::new(memory_file(PAGE_SIZE));
        let mut one = [1; PAGE_SIZE];
        for page in [u64::MAX, u64::MAX / PAGE_SIZE as u64 + 1, i64::MAX as u64 / 4096 + 1] {
            let wrong = Err(TransferError::Os(Errno::INVAL));
            assert_eq!(file.write(page, &[one], |page| page), wrong, "{page}");
            assert_eq!(read(&file, page, 1).map(drop), wrong, "{page}");
            assert_eq!(file.read_page(page, &mut one), wrong, "{page}");
            assert_eq!(file.punch(page, 1), Err(Errno::INVAL), "{page}");
        }
        assert_eq!(read(&file, 0, 1).unwrap(), [[0; PAGE_SIZE]], "nothing wrapped");
    }

    #[test]
    fn punched_pages_are_zeros_and_the_rest_stays() {
        let (file, pages) = (PageFile::new(memory_file(0)), many());
        file.write(0, &pages, |page| page).unwrap();
        let before = fstat(&file).unwrap();
        file.punch(1, 2).unwrap();
        file.punch(pages.len() as u64 - 1, 1).unwrap();
        let after = fstat(&file).unwrap();
        assert_eq!(after.st_size, before.st_size);
        assert_eq!(after.st_blocks, before.st_blocks - 3 * 8, "their room is given back");
        let mut wanted = pages;
        for punched in [1, 2, wanted.len() - 1] {
            wanted[punched] = [0; PAGE_SIZE];
        }
        assert_eq!(read(&file, 0, wanted.len()).unwrap(), wanted);
    }

    #[test]
    fn a_file_system_without_direct_io_is_asked_once_more() {
        let asked = RefCell::new(Vec::new());
        let open = |answer: fn(OFlags) -> Result<(), Errno>| {
            asked.borrow_mut().clear();
            open_direct(|flags| {
                asked.borrow_mut().push(flags);
                answer(flags).map(|()| memory_file(0))
            })
            .map(|(_, direct)| direct)
        };
        assert_eq!(open(|_| Ok(())), Ok(true));
        assert_eq!(*asked.borrow(), [OFlags::DIRECT]);
        let no_direct = |flags: OFlags| if flags.is_empty() { Ok(()) } else { Err(Errno::INVAL) };
        assert_eq!(open(no_direct), Ok(false));
        assert_eq!(*asked.borrow(), [OFlags::DIRECT, OFlags::empty()]);
        assert_eq!(open(|_| Err(Errno::ACCESS)), Err(Errno::ACCESS));
        assert_eq!(*asked.borrow(), [OFlags::DIRECT]);
    }
}
