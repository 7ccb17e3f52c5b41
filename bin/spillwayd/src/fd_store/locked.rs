//! Locks the pages of memory files while no daemon does, so that they are not paged out.

use std::os::fd::OwnedFd;
use std::ptr;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};

/// A file's mapping with all its pages locked.
#[derive(Debug)]
pub struct LockedMapping {
    start: *mut core::ffi::c_void,
    bytes: usize,
}

impl LockedMapping {
    /// Locks all pages that the file has now, as far as the limit on locked memory allows. Holes
    /// stay holes. None if the file can't be mapped.
    pub fn new(file: &OwnedFd) -> Option<Self> {
        let bytes = usize::try_from(fstat(file).ok()?.st_size).ok().filter(|&bytes| bytes > 0)?;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing reads through it.
        let start =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let mapping = Self { start: start.ok()?, bytes };
        let mut at = 0;
        while let Ok(data) = seek(file, SeekFrom::Data(at)) {
            let Ok(hole) = seek(file, SeekFrom::Hole(data)) else { break };
            let (from, length) = (data as usize, (hole - data) as usize);
            // SAFETY: the range lies in the mapping, which is as long as the file.
            let locked = unsafe { mlock(mapping.start.byte_add(from), length) };
            // Beyond the limit, pages stay unlocked. The daemon reported the limit when it started.
            if locked.is_err() {
                break;
            }
            at = hole;
        }
        Some(mapping)
    }
}

impl Drop for LockedMapping {
    fn drop(&mut self) {
        // SAFETY: only this type has the mapping, and nothing reads through it.
        let unmapped = unsafe { munmap(self.start, self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
