//! Locked memory. Pages of a locked range stay resident and count against the budget. Locking *all* memory
//! would make the budget pointless, so mlockall does not lock managed memory.

use crate::pager::pager;
use crate::raw;
use libc::{c_int, c_uint, c_void, size_t};
use spillway_platform::PAGE_SIZE;

fn change(address: *const c_void, bytes: size_t, locked: bool) {
    let start = address as usize / PAGE_SIZE * PAGE_SIZE;
    let end = (address as usize).saturating_add(bytes).next_multiple_of(PAGE_SIZE);
    if let Some(pager) = pager() {
        pager.lock(start, end, locked);
    }
}

/// `mlock(2)`.
///
/// # Safety
/// As mlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, bytes: size_t) -> c_int {
    // SAFETY: passes the caller's arguments on.
    unsafe { mlock2(address, bytes, 0) }
}

/// `mlock2(2)`.
///
/// # Safety
/// As mlock2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(address: *const c_void, bytes: size_t, flags: c_uint) -> c_int {
    change(address, bytes, true);
    // SAFETY: passes the caller's arguments on.
    let answer = unsafe {
        raw::call(libc::SYS_mlock2, [address as usize, bytes, flags as usize, 0, 0, 0]) as c_int
    };
    if answer != 0 {
        change(address, bytes, false);
    }
    answer
}

/// `munlock(2)`.
///
/// # Safety
/// As munlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(address: *const c_void, bytes: size_t) -> c_int {
    change(address, bytes, false);
    // SAFETY: passes the caller's arguments on.
    unsafe { raw::call(libc::SYS_munlock, [address as usize, bytes, 0, 0, 0, 0]) as c_int }
}

/// `mlockall(2)`. In a paged program it locks nothing and returns success. The user is told once.
///
/// # Safety
/// As mlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    match pager() {
        Some(pager) => {
            pager.say_mlockall();
            0
        }
        // SAFETY: passes the caller's arguments on.
        None => unsafe { raw::call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) as c_int },
    }
}
