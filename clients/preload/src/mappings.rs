//! mmap, munmap, mremap and madvise, and the ioctl of a program's own userfaultfd.

use crate::guest_ram;
use crate::pager::{forget_early, pager, remember};
use crate::raw;
use libc::{c_int, c_ulong, c_void, off_t, size_t};
use spillway_pager::{Change, Remap};
use spillway_platform::PAGE_SIZE;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smallest managed mapping, bytes. A smaller mapping is managed only if it replaces part of a managed one.
const MANAGED_BYTES_MIN: usize = 64 << 10;
/// Advice that drops pages, like MADV_DONTNEED. The libc crate lacks it.
const MADV_DONTNEED_LOCKED: c_int = 24;
/// Advice that replaces pages by guards. The kernel sends no event for it.
const MADV_GUARD_INSTALL: c_int = 102;
/// The ioctl number of UFFDIO_REGISTER.
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;

/// Calls that gave pages back to the kernel.
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// How many calls have given pages back to the kernel.
pub fn dropped_calls() -> usize {
    DROPPED.load(Ordering::Relaxed)
}

fn rounded(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(PAGE_SIZE).unwrap_or(usize::MAX / PAGE_SIZE * PAGE_SIZE)
}

/// Whether the pager can manage such a mapping: private and anonymous, without a stack, locked memory, huge pages or
/// code.
fn is_pageable(protection: c_int, flags: c_int) -> bool {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let native = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED;
    flags & (kind | libc::MAP_SHARED) == kind
        && flags & native == 0
        && protection & libc::PROT_EXEC == 0
}

/// `mmap(2)`. Large private anonymous mappings become managed.
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    let start = address as usize;
    let (flags, descriptor) =
        match pager().and_then(|_| guest_ram::make_private(bytes, flags, descriptor, offset)) {
            None => (flags, descriptor),
            Some(Ok(private)) => (private, -1),
            Some(Err(errno)) => {
                // SAFETY: `__errno_location` is valid on every thread of the program.
                unsafe { *libc::__errno_location() = errno };
                return libc::MAP_FAILED;
            }
        };
    let replaces = flags & libc::MAP_FIXED != 0;
    let end = start.saturating_add(rounded(bytes));
    let change = if replaces { begin_unmap(start, end) } else { None };
    let inside = change.is_some();
    let manage = is_pageable(protection, flags) && (bytes >= MANAGED_BYTES_MIN || inside);
    // Does not populate managed mappings: the budget may be smaller than the mapping.
    let flags = if manage { flags & !libc::MAP_POPULATE } else { flags };
    // SAFETY: passes the caller's arguments on.
    let made = unsafe { raw::mmap(address, bytes, protection, flags, descriptor, offset) };
    end_change(change, made as isize);
    if made == libc::MAP_FAILED {
        return made;
    }
    if replaces {
        forget_early(start, end);
    }
    if manage {
        match pager() {
            // Other threads may have touched the new mapping already, because it replaces memory that they use.
            Some(pager) if replaces => {
                let _ = pager.manage(made as usize, rounded(bytes));
            }
            Some(pager) => {
                let _ = pager.manage_untouched(made as usize, rounded(bytes));
            }
            None => remember(made as usize, rounded(bytes)),
        }
    }
    made
}

/// Prepares for a call that unmaps a range or maps over it. Only [`end_change`] forgets the pages, because the kernel
/// may refuse the call.
fn begin_unmap(start: usize, end: usize) -> Option<Change<'static>> {
    pager().filter(|_| start.is_multiple_of(PAGE_SIZE))?.begin_unmap(start, end)
}

/// Tells the pager the result of a call that changes mappings; -1 is a failure. Preserves `errno`.
fn end_change(change: Option<Change<'_>>, answer: isize) {
    let Some(change) = change else { return };
    if answer != -1 {
        return change.made(answer as usize);
    }
    // SAFETY: `__errno_location` is valid on every thread of the program.
    let errno = unsafe { &mut *libc::__errno_location() };
    let reason = *errno;
    change.refused();
    *errno = reason;
}

/// `mmap64(3)`: the same on this architecture.
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: passes the caller's arguments on.
    unsafe { mmap(address, bytes, protection, flags, descriptor, offset) }
}

/// `munmap(2)`.
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    let start = address as usize;
    let end = start.saturating_add(rounded(bytes));
    let change = begin_unmap(start, end);
    // SAFETY: passes the caller's arguments on.
    let answer = unsafe { raw::call(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]) };
    end_change(change, answer);
    if answer == 0 {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        forget_early(start, end);
    }
    answer as c_int
}

/// `mremap(2)`. The kernel's event moves the entries of the page table. Memory that the call adds is managed too.
///
/// # Safety
/// As mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let start = address as usize;
    let (old, new) = (rounded(old_bytes), rounded(new_bytes));
    let target = new_address as usize;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let aligned = [start, target].iter().all(|at| !fixed || at.is_multiple_of(PAGE_SIZE));
    let change = pager().filter(|_| aligned && new > 0).and_then(|pager| {
        pager.begin_remap(Remap {
            start,
            old_bytes: old,
            new_bytes: new,
            target: fixed.then_some(target),
            keeps_source: flags & libc::MREMAP_DONTUNMAP != 0,
        })
    });
    let args = [start, old_bytes, new_bytes, flags as usize, target, 0];
    // SAFETY: passes the caller's arguments on.
    let moved = unsafe { raw::call(libc::SYS_mremap, args) };
    end_change(change, moved);
    moved as *mut c_void
}

/// `madvise(2)`. For managed memory it ignores requests for huge pages, which can't be paged. FREE becomes DONTNEED,
/// which FREE's definition allows.
///
/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let start = address as usize;
    let end = start.saturating_add(rounded(bytes));
    let managed = pager().filter(|pager| pager.is_managed(start, end));
    let mut advice = advice;
    if let Some(pager) = managed {
        match advice {
            libc::MADV_HUGEPAGE | libc::MADV_COLLAPSE => return 0,
            libc::MADV_FREE => advice = libc::MADV_DONTNEED,
            libc::MADV_DONTFORK | libc::MADV_DOFORK => {
                pager.keep_from_children(start, end, advice == libc::MADV_DONTFORK);
                return 0;
            }
            libc::MADV_WIPEONFORK => {
                let _ = pager.unmanage(start, end);
            }
            _ => {}
        }
    }
    // Linux 6.18 can retry for ever when pages move out of a range whose page tables are emptied at the same time.
    let _hold = managed
        .filter(|_| drops(advice) || advice == libc::MADV_REMOVE)
        .map(|pager| pager.hold_off(start, end));
    // SAFETY: passes the caller's arguments on.
    let answer =
        unsafe { raw::call(libc::SYS_madvise, [start, bytes, advice as usize, 0, 0, 0]) as c_int };
    if answer == 0 && drops(advice) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(pager) = managed.filter(|_| answer == 0 && drops(advice)) {
        pager.dropped_now(start, end);
    }
    answer
}

/// Whether this advice drops the contents of pages: they then read as zeros, or can't be read.
fn drops(advice: c_int) -> bool {
    matches!(advice, libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_GUARD_INSTALL)
}

/// `ioctl(2)`. A range that the program registers with a userfaultfd of its own becomes native.
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: usize) -> c_int {
    if request == UFFDIO_REGISTER
        && argument != 0
        && let Some(pager) = pager()
    {
        // SAFETY: the argument of this request begins with the start and length of the range.
        let [start, bytes] = unsafe { std::ptr::read_unaligned(argument as *const [usize; 2]) };
        let _ = pager.unmanage(start, start.saturating_add(bytes));
    }
    let args = [descriptor as usize, request as usize, argument, 0, 0, 0];
    // SAFETY: passes the caller's arguments on.
    unsafe { raw::call(libc::SYS_ioctl, args) as c_int }
}
