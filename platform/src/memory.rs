//! Mappings, residency and advice, bypassing any interposed C library function.

use crate::PAGE_SIZE;
use crate::sys::{number, syscall6};
use core::sync::atomic::{AtomicUsize, Ordering};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Lowest start of native memory. The kernel puts images, heaps, stacks and mappings without a requested address at
/// the ends of the address space, far from here.
const NATIVE_START: usize = 0x2000_0000_0000;
/// Range of the start's random offset, so that addresses can't be guessed.
const NATIVE_SPREAD: usize = 1 << 40;
/// Distance to the next attempt if the range is taken, and number of attempts.
const NATIVE_STEP: usize = 1 << 36;
const NATIVE_TRIES: usize = 64;

/// The next address of native memory; 0 before the first mapping.
static NEXT_NATIVE: AtomicUsize = AtomicUsize::new(0);

/// Maps zeroed private memory for Spillway itself, with 4 KiB pages, left out of core dumps and without a reservation
/// of swap. Returns its address.
///
/// It lies in a part of the address space that the kernel does not choose for mappings. A program that unmaps a range
/// and then maps the same range by MAP_FIXED must not overwrite it.
///
/// # Errors
/// `NOMEM` if no free range is found or the process has too many mappings.
pub fn map_native(bytes: usize) -> Result<usize, Errno> {
    map_apart(bytes, MapFlags::PRIVATE | MapFlags::NORESERVE)
}

/// As [`map_native`], but of memory that a forked child shares.
///
/// # Errors
/// As [`map_native`].
pub fn map_native_shared(bytes: usize) -> Result<usize, Errno> {
    map_apart(bytes, MapFlags::SHARED)
}

fn map_apart(bytes: usize, kind: MapFlags) -> Result<usize, Errno> {
    let room = bytes.next_multiple_of(PAGE_SIZE);
    if NEXT_NATIVE.load(Ordering::Relaxed) == 0 {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let spread = usize::from_ne_bytes(random) % NATIVE_SPREAD / PAGE_SIZE * PAGE_SIZE;
        let start = NATIVE_START + spread;
        let _ = NEXT_NATIVE.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    }
    for _ in 0..NATIVE_TRIES {
        let place = NEXT_NATIVE.fetch_add(room, Ordering::Relaxed);
        let flags = kind | MapFlags::FIXED_NOREPLACE;
        // SAFETY: FIXED_NOREPLACE maps only where nothing is mapped.
        let made = unsafe {
            mmap_anonymous(place as *mut _, bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        match made {
            Ok(made) => {
                let address = made as usize;
                advise(address, bytes, Advice::LinuxNoHugepage)?;
                advise(address, bytes, Advice::LinuxDontDump)?;
                return Ok(address);
            }
            Err(Errno::EXIST) => NEXT_NATIVE.fetch_add(NATIVE_STEP, Ordering::Relaxed),
            Err(errno) => return Err(errno),
        };
    }
    Err(Errno::NOMEM)
}

/// Makes the kernel back a range by huge pages. At least one page of the range must be present. Present pages keep
/// their contents, the others become zeros. This ignores the system's setting for transparent huge pages.
///
/// # Errors
/// As madvise(2) for `MADV_COLLAPSE` (Linux 6.1): no huge page is free, or the range can't have one.
pub fn collapse(address: usize, bytes: usize) -> Result<(), Errno> {
    const MADV_COLLAPSE: usize = 25;
    // SAFETY: no byte that was written changes.
    unsafe { syscall6(number::MADVISE, [address, bytes, MADV_COLLAPSE, 0, 0, 0]).map(|_| ()) }
}

/// `madvise` on a range of this address space.
///
/// # Errors
/// As madvise(2).
pub fn advise(address: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
    // SAFETY: callers give advice that changes contents (such as DONTNEED) only on memory that they own; other advice
    // changes no contents.
    unsafe { madvise(address as *mut _, bytes, advice) }
}

/// Writes one byte for each page of a range to `pages`; bit 0 is set if the page is resident.
///
/// # Errors
/// `NOMEM` if part of the range is not mapped.
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
