//! The system calls behind the interposed functions, with errors in `errno`.

use libc::{c_int, c_void, off_t, size_t};
use rustix::io::Errno;
use spillway_platform::sys::syscall6;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Converts a result to libc's convention: an error becomes -1, with the reason in `errno`.
pub fn answer(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            // SAFETY: `__errno_location` is valid on every thread of the program.
            unsafe { *libc::__errno_location() = errno.raw_os_error() };
            -1
        }
    }
}

/// The next function with this name after this library's, usually the C library's. Looked up once.
pub fn next(cache: &AtomicUsize, name: &std::ffi::CStr) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: a lookup by a terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    cache.store(found, Ordering::Relaxed);
    found
}

/// Makes a system call, with the result of `syscall(2)`.
///
/// # Safety
/// As the system call itself.
pub unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
    // SAFETY: passes the program's arguments on.
    answer(unsafe { syscall6(number as usize, args) })
}

/// `mmap(2)`.
///
/// # Safety
/// As mmap(2): a fixed address replaces what is mapped there.
pub unsafe fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    let args = [
        address as usize,
        bytes,
        protection as usize,
        flags as usize,
        descriptor as usize,
        offset as usize,
    ];
    // SAFETY: passes the caller's arguments on.
    unsafe { call(libc::SYS_mmap, args) as *mut c_void }
}
