//! The in-thread mode's cover for system calls: the C library's reads and writes bring their
//! buffers in first and hold them, for the kernel answers no faults of system calls there.

use crate::raw::next;
use crate::run::pager;
use libc::{c_int, c_void, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::sync::atomic::AtomicUsize;

macro_rules! held {
    ($($name:ident, $text:literal, $buffer:ident, $bytes:ident, ($($argument:ident: $kind:ty),*);)*) => {$(
        /// The C library's function of this name, with its buffer held in the in-thread mode.
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
