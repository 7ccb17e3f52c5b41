//! The C library's `syscall(2)` and `prctl(2)`.

use crate::fork::Fork;
use crate::pager::pager;
use crate::{locks, mappings};
use libc::{c_int, c_void};
use spillway_platform::dispatch;
use std::sync::atomic::{AtomicUsize, Ordering};

type Syscall =
    unsafe extern "C" fn(libc::c_long, usize, usize, usize, usize, usize, usize) -> libc::c_long;

/// The C library's `syscall`, once [`prepare`] has found it.
static LIBC_SYSCALL: AtomicUsize = AtomicUsize::new(0);

/// Looks up the C library's `syscall`. Called at the start, because a signal handler may be the first to need it.
pub fn prepare() {
    crate::raw::next(&LIBC_SYSCALL, c"syscall");
}

/// `prctl(2)`. Tells the pager when the program is about to adopt orphans. Records the program's own syscall user
/// dispatch, because a fork turns it off and must restore it.
///
/// # Safety
/// As the system call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_CHILD_SUBREAPER
        && a != 0
        && let Some(pager) = pager()
    {
        pager.note_adopts_orphans();
    }
    // SAFETY: passes the program's arguments on.
    let answer = unsafe { crate::raw::call(libc::SYS_prctl, [option as usize, a, b, c, d, 0]) };
    if option == dispatch::PR_SET_SYSCALL_USER_DISPATCH && answer == 0 {
        crate::fork::remember_dispatch((a != dispatch::OFF).then_some([a, b, c, d]));
    }
    answer as c_int
}

/// `syscall(2)`. System calls that change mappings or start processes take the same path as the C library's functions
/// for them. All others go through the C library's own `syscall`: a program that allows system calls by their address
/// (syscall user dispatch) expects them there.
///
/// # Safety
/// As the system call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> libc::c_long {
    let at = |address: usize| address as *mut c_void;
    // SAFETY: passes the program's arguments on.
    unsafe {
        match number {
            libc::SYS_mmap => {
                mappings::mmap(at(a), b, c as c_int, d as c_int, e as c_int, f as i64) as i64
            }
            libc::SYS_munmap => i64::from(mappings::munmap(at(a), b)),
            libc::SYS_mremap => mappings::mremap(at(a), b, c, d as c_int, at(e)) as i64,
            libc::SYS_madvise => i64::from(mappings::madvise(at(a), b, c as c_int)),
            libc::SYS_mlock => i64::from(locks::mlock(at(a), b)),
            libc::SYS_mlockall => i64::from(locks::mlockall(a as c_int)),
            libc::SYS_ioctl => i64::from(mappings::ioctl(a as c_int, b as libc::c_ulong, c)),
            libc::SYS_prctl => i64::from(prctl(a as c_int, b, c, d, e)),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
                let args = [a, b, c, d, e, f];
                match Fork::of(number as usize, args) {
                    // A child with a stack of its own could not return from here, with or without this library.
                    Some(fork) if fork.child_stack() == 0 => {
                        crate::raw::answer(fork.make()) as libc::c_long
                    }
                    _ => crate::raw::call(number, args) as i64,
                }
            }
            _ => match LIBC_SYSCALL.load(Ordering::Relaxed) {
                0 => crate::raw::call(number, [a, b, c, d, e, f]) as i64,
                found => std::mem::transmute::<usize, Syscall>(found)(number, a, b, c, d, e, f),
            },
        }
    }
}
