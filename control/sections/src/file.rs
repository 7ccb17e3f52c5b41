//! A file of a guest: its size, its allocation from the lowest hole on, its release.

use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, SeekFrom, fallocate, fchmod, fchown,
    fstat, ftruncate, openat, seek, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;
use spillway_platform::lease::WriteLease;

use crate::error::Error;
use crate::mount::Backing;

/// An open file of the pool.
#[derive(Debug)]
pub struct SectionFile {
    pub(crate) descriptor: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) backing: Backing,
}

impl SectionFile {
    /// Opens a file in a guest's folder; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Foreign`] if it is not a regular file of this user.
    pub fn open(folder: impl AsFd, path: PathBuf, backing: Backing) -> Result<Option<Self>, Error> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let foreign = |why| Error::Foreign { path: path.clone(), why };
        let descriptor = match openat(folder, name_of(&path), flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(foreign("it is a symbolic link")),
            Err(Errno::ISDIR | Errno::NXIO) => return Err(foreign("it is not a file")),
            Err(errno) => return Err(Error::io("open", &path)(errno)),
        };
        let found = fstat(&descriptor).map_err(Error::io("look at", &path))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(foreign("it is not a file"));
        }
        if found.st_uid != geteuid().as_raw() {
            return Err(foreign("it belongs to another user"));
        }
        if found.st_nlink != 1 {
            return Err(foreign("it has a second name"));
        }
        Ok(Some(Self { descriptor, path, backing }))
    }

    /// Creates an empty file of this size.
    ///
    /// # Errors
    /// [`Error::Io`]; then no file exists.
    pub fn create(
        folder: impl AsFd,
        path: PathBuf,
        backing: Backing,
        bytes: u64,
        group: Option<u32>,
    ) -> Result<Self, Error> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let own = Mode::RUSR | Mode::WUSR;
        let descriptor = openat(folder.as_fd(), name_of(&path), flags, own)
            .map_err(Error::io("create", &path))?;
        let file = Self { descriptor, path, backing };
        let made = share(&file.descriptor, own, Mode::RGRP | Mode::WGRP, group)
            .and_then(|()| ftruncate(&file.descriptor, bytes))
            .map_err(Error::io("set up", &file.path));
        if made.is_err() {
            let _ = unlinkat(folder, name_of(&file.path), AtFlags::empty());
        }
        made.map(|()| file)
    }

    /// The file's size.
    pub fn bound(&self) -> Result<u64, Error> {
        let found = fstat(&self.descriptor).map_err(Error::io("look at", &self.path))?;
        Ok(found.st_size as u64)
    }

    /// Sets the file's size.
    pub fn set_bound(&self, bytes: u64) -> Result<(), Error> {
        ftruncate(&self.descriptor, bytes).map_err(Error::io("set the length of", &self.path))
    }

    /// The allocated bytes.
    pub fn allocated(&self) -> Result<u64, Error> {
        let found = fstat(&self.descriptor).map_err(Error::io("look at", &self.path))?;
        Ok(found.st_blocks as u64 * 512)
    }

    /// Allocates `bytes` in the lowest holes, searched from `from` on and then from the start. Returns the offset below
    /// which there is no hole now.
    ///
    /// # Errors
    /// After an error, the allocated part is punched again; `NOSPC` when there are no more holes or no more memory.
    pub fn fill(&self, bytes: u64, from: u64, bound: u64) -> Result<u64, Errno> {
        let mut made = Vec::new();
        let mut missing = bytes;
        let mut end = self.fill_range(from..bound, &mut missing, &mut made);
        if missing > 0 && from > 0 && end.is_ok() {
            end = self.fill_range(0..from, &mut missing, &mut made);
        }
        if missing > 0 && end.is_ok() {
            end = Err(Errno::NOSPC);
        }
        if end.is_err() {
            for range in made {
                // Memory that can't be punched is still counted: the caller reads the file's allocation.
                let _ = self.punch(range);
            }
        }
        end
    }

    /// Allocates up to `missing` bytes in the lowest holes of a range, and records the allocated ranges. A step is
    /// never longer than the missing bytes, so no more is allocated.
    fn fill_range(
        &self,
        range: Range<u64>,
        missing: &mut u64,
        made: &mut Vec<Range<u64>>,
    ) -> Result<u64, Errno> {
        let mut at = range.start;
        while *missing > 0 {
            at = self.next_hole(at)?;
            if at >= range.end {
                return Ok(range.end);
            }
            let step = (*missing).min(self.backing.unit_bytes()).min(range.end - at);
            let new = self.fill_unit(at, step)?;
            // Keep a step that was partly allocated before: the new part can't be distinguished.
            if new >= step {
                made.push(at..at + step);
            }
            *missing = missing.saturating_sub(new);
            at += step;
        }
        Ok(at)
    }

    /// Allocates at most `bytes` in one run of holes: the first run from `from` on, or only one that begins there.
    /// Returns the run, which is shorter if it ends at allocated memory.
    ///
    /// # Errors
    /// After an error, the allocated part is punched again.
    pub fn fill_run(
        &self,
        bytes: u64,
        from: u64,
        bound: u64,
        only_there: bool,
    ) -> Result<Range<u64>, Errno> {
        let mut run = from..from;
        let mut at = from;
        while run.end - run.start < bytes && at < bound {
            let step = self.backing.unit_bytes().min(bound - at);
            match self.fill_unit(at, step) {
                Ok(new) if new >= step => {
                    let start = if run.is_empty() { at } else { run.start };
                    run = start..at + step;
                }
                Ok(_) if run.is_empty() && !only_there => {}
                Ok(_) => break,
                Err(errno) => {
                    if !run.is_empty() {
                        let _ = self.punch(run);
                    }
                    return Err(errno);
                }
            }
            at += step;
        }
        Ok(run)
    }

    /// Allocates a unit. Returns how much of it was a hole.
    fn fill_unit(&self, at: u64, bytes: u64) -> Result<u64, Errno> {
        let before = fstat(&self.descriptor)?.st_blocks;
        self.allocate(at, bytes)?;
        Ok((fstat(&self.descriptor)?.st_blocks - before).max(0) as u64 * 512)
    }

    /// Allocates the missing parts of a range.
    pub(crate) fn allocate(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        #[cfg(test)]
        crate::crash::step();
        retry_on_intr(|| fallocate(&self.descriptor, FallocateFlags::empty(), at, bytes))
    }

    /// The offset of the next unit with a hole, from `at` on. Only tmpfs reports holes, and it reports allocated pages
    /// that were never touched as holes too. Allocating such a page again turns it into data for SEEK_DATA, as if it
    /// had been touched.
    fn next_hole(&self, at: u64) -> Result<u64, Errno> {
        match self.backing {
            Backing::Hugetlbfs { .. } => Ok(at),
            Backing::Tmpfs => match seek(&self.descriptor, SeekFrom::Hole(at)) {
                // A step that begins within a unit would end within the next one, and could not be undone.
                Ok(hole) => Ok(at.max(hole - hole % self.backing.unit_bytes())),
                // `at` is the file's end.
                Err(Errno::NXIO) => Ok(at),
                Err(errno) => Err(errno),
            },
        }
    }

    /// Makes an error of a system call on this file.
    pub fn failed(&self, what: &'static str, errno: Errno) -> Error {
        Error::io(what, &self.path)(errno)
    }

    /// Releases its memory except a range.
    pub fn empty_but(&self, kept: Range<u64>) -> Result<(), Error> {
        let bound = self.bound()?;
        if kept.is_empty() {
            return self.give_back(0..bound);
        }
        self.give_back(0..kept.start)?;
        self.give_back(kept.end..bound)
    }

    /// Releases the memory of a range.
    pub fn give_back(&self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        self.punch(range).map_err(Error::io("give back memory of", &self.path))
    }

    pub(crate) fn punch(&self, range: Range<u64>) -> Result<(), Errno> {
        #[cfg(test)]
        crate::crash::step();
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let length = range.end - range.start;
        retry_on_intr(|| fallocate(&self.descriptor, mode, range.start, length))
    }

    /// Takes a lease on the file, so that it can be removed.
    ///
    /// # Errors
    /// [`Error::InUse`] if any other process has it open.
    pub fn lease(&self) -> Result<WriteLease<&OwnedFd>, Error> {
        WriteLease::take(&self.descriptor).map_err(|errno| match errno {
            Errno::AGAIN => Error::InUse { path: self.path.clone() },
            errno => self.failed("find out who uses", errno),
        })
    }
}

/// Grants access to the owner and a group, and nobody else, regardless of the process's umask.
pub fn share(file: impl AsFd, own: Mode, theirs: Mode, group: Option<u32>) -> Result<(), Errno> {
    let Some(group) = group else { return fchmod(file, own) };
    fchown(&file, None, Some(Gid::from_raw(group)))?;
    fchmod(file, own | theirs)
}

/// The last component of a path. Paths of the pool always have one.
pub fn name_of(path: &Path) -> &Path {
    path.file_name().map_or(path, Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, unlink};
    use rustix::io::{pread, pwrite};

    const MIB: u64 = 1 << 20;
    const BOUND: u64 = 16 * MIB;

    struct TestFile(SectionFile);

    impl TestFile {
        fn new(name: &str) -> Self {
            let path = PathBuf::from(format!("/dev/shm/spillway-{name}-{}", std::process::id()));
            let folder = rustix::fs::openat(CWD, "/dev/shm", OFlags::PATH, Mode::empty()).unwrap();
            Self(SectionFile::create(folder, path, Backing::Tmpfs, BOUND, None).unwrap())
        }

        fn write(&self, at: u64) {
            assert_eq!(pwrite(&self.0.descriptor, b"guest", at).unwrap(), 5);
        }

        fn reads(&self, at: u64) -> bool {
            let mut bytes = [0; 5];
            pread(&self.0.descriptor, &mut bytes, at).unwrap();
            bytes == *b"guest"
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = unlink(&self.0.path);
        }
    }

    #[test]
    fn what_can_t_be_filled_is_as_it_was() {
        let file = TestFile::new("undo");
        assert_eq!(file.0.fill(4 * MIB, 0, BOUND), Ok(4 * MIB));
        file.0.punch(0..2 * MIB).unwrap();
        assert_eq!(file.0.fill(2 * MIB, 4 * MIB, BOUND), Ok(6 * MIB));
        file.write(2 * MIB);
        file.write(6 * MIB - 8);
        for from in [0, 2 * MIB, 6 * MIB] {
            assert_eq!(file.0.fill(14 * MIB, from, BOUND), Err(Errno::NOSPC), "from {from}");
            assert_eq!(file.0.allocated().unwrap(), 4 * MIB);
        }
        assert!(file.reads(2 * MIB) && file.reads(6 * MIB - 8));
        file.0.fill(12 * MIB, 4 * MIB, BOUND).unwrap();
        assert_eq!(file.0.allocated().unwrap(), BOUND);
        assert!(file.reads(2 * MIB) && file.reads(6 * MIB - 8));
    }

    #[test]
    fn a_step_beside_a_guests_pages_is_never_undone() {
        let file = TestFile::new("beside");
        for at in [MIB, 2 * MIB - 4096, 5 * MIB] {
            file.write(at);
        }
        let before = file.0.allocated().unwrap();
        assert_eq!(file.0.fill(BOUND, 0, BOUND), Err(Errno::NOSPC));
        assert!([MIB, 2 * MIB - 4096, 5 * MIB].into_iter().all(|at| file.reads(at)));
        let left = file.0.allocated().unwrap() - before;
        assert!(left < 2 * 2 * MIB, "{left} bytes more");
    }

    #[test]
    fn what_is_found_to_be_full_is_not_looked_at_again() {
        let file = TestFile::new("full");
        let end = file.0.fill(4 * MIB, 0, BOUND).unwrap();
        file.0.punch(0..2 * MIB).unwrap();
        assert_eq!(file.0.fill(2 * MIB, end, BOUND), Ok(6 * MIB), "above first");
        assert_eq!(file.0.fill(12 * MIB, 6 * MIB, BOUND), Ok(2 * MIB), "then below");
    }

    #[test]
    fn a_file_never_grows() {
        let file = TestFile::new("grows");
        assert_eq!(file.0.fill(BOUND, BOUND - MIB, BOUND), Ok(BOUND - MIB));
        assert_eq!(file.0.bound().unwrap(), BOUND);
        assert_eq!(file.0.allocated().unwrap(), BOUND);
    }
}
