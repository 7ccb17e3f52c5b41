//! Mappings, residency and advice, past any interposed C library function.

use crate::PAGE_SIZE;
use crate::sys::{number, syscall6};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Maps zeroed private memory that Spillway itself uses: small pages, no core dump, no reserve.
/// Returns its address.
///
/// # Errors
/// When the address space or the kernel's mappings are used up.
pub fn map_native(bytes: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)?
    } as usize;
    advise(address, bytes, Advice::LinuxNoHugepage)?;
    advise(address, bytes, Advice::LinuxDontDump)?;
    Ok(address)
}

/// `madvise` on a range of this address space.
///
/// # Errors
/// As madvise(2).
pub fn advise(address: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
    // SAFETY: advice that changes contents (DONTNEED and its like) is given by callers on memory
    // that is theirs; the other kinds change no contents.
    unsafe { madvise(address as *mut _, bytes, advice) }
}

/// Which pages of a range are resident: one byte a page, bit 0 set when it is.
///
/// # Errors
/// `NOMEM` when part of the range is not mapped.
pub fn residency(address: usize, pages: &mut [u8]) -> Result<(), Errno> {
    let args = [address, pages.len() * PAGE_SIZE, pages.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: mincore writes one byte a page into `pages`, which has that many.
    unsafe { syscall6(number::MINCORE, args) }.map(|_| ())
}

/// Whether every page of a range is mapped.
#[must_use]
pub fn is_mapped(address: usize, bytes: usize) -> bool {
    let mut pages = [0u8; 512];
    let end = address + bytes;
    let mut at = address;
    while at < end {
        let count = ((end - at) / PAGE_SIZE).min(pages.len());
        if residency(at, &mut pages[..count]) == Err(Errno::NOMEM) {
            return false;
        }
        at += count * PAGE_SIZE;
    }
    true
}

/// Whether no page of a range is mapped: nothing in the way of a mapping there.
#[must_use]
pub fn is_unmapped(address: usize, bytes: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: FIXED_NOREPLACE maps where nothing is mapped or not at all; what was made is
    // unmapped at once.
    unsafe {
        let Ok(made) = mmap_anonymous(address as *mut _, bytes, ProtFlags::empty(), flags) else {
            return false;
        };
        let there = made as usize == address;
        let _ = rustix::mm::munmap(made, bytes);
        there
    }
}
