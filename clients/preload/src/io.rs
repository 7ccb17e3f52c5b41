//! Reads and writes in in-thread mode. The C library's functions first bring their buffers in and hold
//! them, because in this mode a system call that touches a far page fails.

use crate::pager::pager;
use crate::raw::next;
use libc::{c_int, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use spillway_pager::Hold;
use std::sync::atomic::AtomicUsize;

/// Most vectors of a call. The buffers of a call with more vectors are not held.
const VECTORS_MAX: usize = 256;

macro_rules! held {
    ($($name:ident, $text:literal, $buffer:ident, $bytes:ident, ($($argument:ident: $kind:ty),*);)*) => {$(
        /// The C library's function of this name, with its buffer held in in-thread mode.
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> ssize_t {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            type Real = unsafe extern "C" fn($($kind),*) -> ssize_t;
            let _hold = pager()
                .filter(|pager| pager.is_in_thread())
                .and_then(|pager| pager.hold($buffer as usize, $bytes));
            // SAFETY: the C library has this function with this signature; the arguments are the
            // program's.
            unsafe { std::mem::transmute::<usize, Real>(next(&NEXT, $text))($($argument),*) }
        }
    )*};
}

macro_rules! held_vectors {
    ($($name:ident, $text:literal;)*) => {$(
        /// The C library's function of this name, with its buffers held in in-thread mode.
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            type Real = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
            // SAFETY: the C library has this function with this signature; the arguments are the
            // program's.
            unsafe {
                let _holds = hold_vectors(vectors, count);
                std::mem::transmute::<usize, Real>(next(&NEXT, $text))(file, vectors, count)
            }
        }
    )*};
}

held_vectors! {
    readv, c"readv";
    writev, c"writev";
}

/// Holds the memory that a system call with vectors touches: the vectors and their buffers.
///
/// # Safety
/// As readv(2).
unsafe fn hold_vectors(vectors: *const iovec, count: c_int) -> Vec<Hold<'static>> {
    let Some(pager) = pager().filter(|pager| pager.is_in_thread()) else { return Vec::new() };
    let Ok(count @ 1..=VECTORS_MAX) = usize::try_from(count) else { return Vec::new() };
    // SAFETY: the program passes `count` vectors.
    let all = unsafe { std::slice::from_raw_parts(vectors, count) };
    let buffers = all.iter().map(|one| (one.iov_base as usize, one.iov_len));
    let ranges = std::iter::once((vectors as usize, size_of_val(all))).chain(buffers);
    ranges.filter_map(|(start, bytes)| pager.hold(start, bytes)).collect()
}

held! {
    read, c"read", buffer, bytes, (file: c_int, buffer: *mut c_void, bytes: size_t);
    write, c"write", buffer, bytes, (file: c_int, buffer: *const c_void, bytes: size_t);
    pread, c"pread", buffer, bytes, (file: c_int, buffer: *mut c_void, bytes: size_t, at: off_t);
    pwrite, c"pwrite", buffer, bytes, (file: c_int, buffer: *const c_void, bytes: size_t, at: off_t);
    pread64, c"pread64", buffer, bytes, (file: c_int, buffer: *mut c_void, bytes: size_t, at: off_t);
    pwrite64, c"pwrite64", buffer, bytes, (file: c_int, buffer: *const c_void, bytes: size_t, at: off_t);
    recv, c"recv", buffer, bytes, (file: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int);
    send, c"send", buffer, bytes, (file: c_int, buffer: *const c_void, bytes: size_t, flags: c_int);
    recvfrom, c"recvfrom", buffer, bytes, (file: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t);
    sendto, c"sendto", buffer, bytes, (file: c_int, buffer: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr, length: socklen_t);
}
