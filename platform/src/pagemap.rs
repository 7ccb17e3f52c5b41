//! `/proc/self/pagemap`: whether any process maps a page of a memory file.

use core::ptr::null_mut;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::PAGE_SIZE;

/// Bits of an entry (Documentation/admin-guide/mm/pagemap.rst): the page is present; this mapping is its only one.
const PRESENT: u64 = 1 << 63;
const EXCLUSIVE: u64 = 1 << 56;

/// This process's page map. Open it before a sandbox closes /proc. It needs no privilege.
#[derive(Debug)]
pub struct Pagemap(OwnedFd);

impl Pagemap {
    /// Opens it.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn open() -> Result<Self, Errno> {
        open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Self)
    }

    /// Whether any process, this one included, has the page at offset `at` of a file in its page tables: it has mapped
    /// the page and touched it. The file lies in tmpfs or hugetlbfs, with pages of `bytes`. If the file lacks the page,
    /// this allocates it.
    ///
    /// # Errors
    /// As mmap(2) and madvise(2) for `MADV_POPULATE_READ` (Linux 5.14).
    pub fn is_mapped(&self, file: impl AsFd, at: u64, bytes: usize) -> Result<bool, Errno> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping, which is unmapped below. No code reads or writes through it.
        let mapped = unsafe { mmap(null_mut(), bytes, ProtFlags::READ, flags, file, at)? };
        let mut entry = [0; 8];
        let place = mapped as u64 / PAGE_SIZE as u64 * 8;
        // SAFETY: this advice changes no contents.
        let read = unsafe { madvise(mapped, bytes, Advice::LinuxPopulateRead) }
            .and_then(|()| retry_on_intr(|| pread(&self.0, &mut entry, place)));
        // SAFETY: the mapping made above; no other code has its address.
        unsafe { munmap(mapped, bytes)? };
        let entry = u64::from_ne_bytes(entry);
        if read? < 8 || entry & PRESENT == 0 {
            return Err(Errno::NODATA);
        }
        Ok(entry & EXCLUSIVE == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pwrite;

    #[test]
    fn a_page_is_mapped_while_anybody_maps_it() {
        let pagemap = Pagemap::open().unwrap();
        let file = memfd_create("pages", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 3 * PAGE_SIZE as u64).unwrap();
        pwrite(&file, b"written, not mapped", PAGE_SIZE as u64).unwrap();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = 3 * PAGE_SIZE;
        // SAFETY: a new mapping, of which one byte is written below.
        let mapped = unsafe { mmap(null_mut(), bytes, access, flags, &file, 0).unwrap() };
        let look = || {
            let page = |page| pagemap.is_mapped(&file, page * PAGE_SIZE as u64, PAGE_SIZE).unwrap();
            [page(0), page(1), page(2)]
        };
        assert_eq!(look(), [false; 3], "mapped, and never touched there");
        // SAFETY: within the mapping.
        unsafe { mapped.cast::<u8>().add(2 * PAGE_SIZE).write_volatile(1) };
        assert_eq!(look(), [false, false, true]);
        // SAFETY: no address of the mapping is used after this.
        unsafe { munmap(mapped, bytes).unwrap() };
        assert_eq!(look(), [false; 3]);
        let beyond = pagemap.is_mapped(&file, bytes as u64, PAGE_SIZE);
        assert!(beyond.is_err(), "no page lies behind the file's end");
    }
}
