//! Signals in in-thread mode. The pager handles SIGBUS first, and passes it to the program's own handler if
//! it does not concern managed memory.

use crate::pager::pager;
use crate::raw::next;
use libc::{c_int, c_void, sigaction as action, siginfo_t, sigset_t};
use spillway_platform::dispatch::{self, Disposition};
use spillway_platform::lock::Lock;
use spillway_platform::sys::syscall6;
use std::sync::atomic::AtomicUsize;

const MASK_BYTES: usize = 8;
const BUS_BIT: u64 = 1 << (libc::SIGBUS - 1);
/// The C library's two internal signals, with which it cancels threads and changes the user of all threads. The program
/// can't block them.
const INTERNAL_BITS: u64 = 3 << (32 - 1);
/// Bit of the page fault error code in a signal frame: the access was a write.
const WROTE: i64 = 2;

/// The program's own action for SIGBUS.
static WANTED: Lock<Option<action>> = Lock::new(None);

/// Installs the pager's handler for SIGBUS.
pub fn take_over() {
    // Without SA_ONSTACK, because the program's alternate stack may be far. Not by the C library's sigaction: a handler
    // that returns through the C library's code could not run while a fork is in progress.
    let flags = dispatch::SA_NODEFER | dispatch::SA_RESTART;
    let ours = Disposition::of(on_bus_error, flags, u64::MAX);
    // SAFETY: the handler passes signals that do not concern managed memory to the program's handler.
    let Ok(before) = (unsafe { dispatch::set_disposition(libc::SIGBUS, &ours) }) else { return };
    // SAFETY: a zeroed sigaction is valid; the first eight bytes of its mask are the kernel's.
    *WANTED.lock() = Some(unsafe {
        let mut wanted: action = std::mem::zeroed();
        wanted.sa_sigaction = before.handler;
        wanted.sa_flags = before.flags as c_int;
        (&raw mut wanted.sa_mask).cast::<u64>().write(before.mask);
        wanted
    });
}

/// glibc's own sigaction, which sets the restorer that the kernel requires.
unsafe fn real_sigaction(signal: c_int, new: *const action, old: *mut action) -> c_int {
    type Sigaction = unsafe extern "C" fn(c_int, *const action, *mut action) -> c_int;
    // SAFETY: glibc has had this symbol with this signature since 2.0.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr());
        if found.is_null() {
            return -1;
        }
        std::mem::transmute::<*mut c_void, Sigaction>(found)(signal, new, old)
    }
}

extern "C" fn on_bus_error(signal: c_int, info: usize, context: usize) {
    let (info, context) = (info as *mut siginfo_t, context as *mut c_void);
    // SAFETY: the kernel hands valid pointers to a handler with SA_SIGINFO.
    let (address, wrote) = unsafe {
        let context = &*(context as *const libc::ucontext_t);
        let error = context.uc_mcontext.gregs[libc::REG_ERR as usize];
        ((*info).si_addr() as usize, error & WROTE != 0)
    };
    if pager().is_some_and(|pager| pager.answer_in_thread(address, wrote)) {
        return;
    }
    let wanted = *WANTED.lock();
    // SAFETY: the handler is what the program installed for this signal.
    unsafe {
        match wanted {
            Some(wanted) if wanted.sa_sigaction == libc::SIG_IGN => {}
            Some(wanted) if wanted.sa_sigaction != libc::SIG_DFL => {
                type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                std::mem::transmute::<usize, Handler>(wanted.sa_sigaction)(signal, info, context);
            }
            _ => {
                let mut fatal: action = std::mem::zeroed();
                fatal.sa_sigaction = libc::SIG_DFL;
                real_sigaction(signal, &raw const fatal, std::ptr::null_mut());
            }
        }
    }
}

/// `sigaction(2)`. In in-thread mode it records the program's action for SIGBUS, which applies to signals that are not
/// the pager's, and removes SIGBUS from the masks of other handlers.
///
/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const action, old: *mut action) -> c_int {
    // SAFETY: the pointers are null or valid, as the program promises.
    unsafe {
        if signal == libc::SIGSYS {
            return crate::fork::with_own_disposition(|| real_sigaction(signal, new, old));
        }
        if !pager().is_some_and(|pager| pager.is_in_thread()) {
            return real_sigaction(signal, new, old);
        }
        if signal == libc::SIGBUS {
            let mut wanted = WANTED.lock();
            if let (Some(old), Some(before)) = (old.as_mut(), *wanted) {
                *old = before;
            }
            if let Some(new) = new.as_ref() {
                *wanted = Some(*new);
            }
            return 0;
        }
        let Some(given) = new.as_ref() else { return real_sigaction(signal, new, old) };
        let mut open = *given;
        libc::sigdelset(&raw mut open.sa_mask, libc::SIGBUS);
        real_sigaction(signal, &raw const open, old)
    }
}

/// `signal(2)`. Calls the C library's function, which knows the state of siginterrupt(3), except for the signals that
/// this library also handles.
///
/// # Safety
/// As signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    type Signal = unsafe extern "C" fn(c_int, usize) -> usize;
    let in_thread = pager().is_some_and(|pager| pager.is_in_thread());
    // SAFETY: the C library has this function with this signature; zeroed structures are valid; the handler is
    // the program's.
    unsafe {
        if number != libc::SIGSYS && !(in_thread && number == libc::SIGBUS) {
            return std::mem::transmute::<usize, Signal>(next(&NEXT, c"signal"))(number, handler);
        }
        let mut new: action = std::mem::zeroed();
        let mut old: action = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        if sigaction(number, &raw const new, &raw mut old) != 0 {
            return libc::SIG_ERR;
        }
        old.sa_sigaction
    }
}

/// `pthread_sigmask(3)`. In in-thread mode it never blocks SIGBUS.
///
/// # Safety
/// As pthread_sigmask(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the first eight bytes of a libc signal set are the kernel's; pointers are null or
    // valid, as the program promises.
    unsafe {
        let mut mask = if set.is_null() { 0 } else { *(set as *const u64) & !INTERNAL_BITS };
        if how != libc::SIG_UNBLOCK && pager().is_some_and(|pager| pager.is_in_thread()) {
            mask &= !BUS_BIT;
        }
        let new = if set.is_null() { 0 } else { &raw const mask as usize };
        if !old.is_null() {
            libc::sigemptyset(old);
        }
        let args = [how as usize, new, old as usize, MASK_BYTES, 0, 0];
        match syscall6(libc::SYS_rt_sigprocmask as usize, args) {
            Ok(_) => 0,
            Err(errno) => errno.raw_os_error(),
        }
    }
}

/// `sigprocmask(2)`.
///
/// # Safety
/// As sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: passes the caller's arguments on.
    match unsafe { pthread_sigmask(how, set, old) } {
        0 => 0,
        errno => {
            // SAFETY: `__errno_location` is valid on every thread of the program.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}
