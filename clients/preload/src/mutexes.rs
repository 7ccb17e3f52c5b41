//! Robust mutexes stay resident. When a thread ends that holds one, the kernel unlocks the mutex, at a point
//! where that thread's faults are no longer answered.

use crate::pager::pager;
use crate::raw::next;
use libc::{c_int, pthread_mutex_t, pthread_mutexattr_t};
use std::sync::atomic::AtomicUsize;

/// Offset of a mutex's kind, which is part of glibc's ABI for x86-64, and the bit of robust mutexes in the kind.
const KIND: usize = 16;
const ROBUST: c_int = 16;

/// # Safety
/// The mutex must have been initialised.
unsafe fn is_robust(mutex: *const pthread_mutex_t) -> bool {
    // SAFETY: inside the mutex.
    let kind = unsafe { mutex.byte_add(KIND).cast::<c_int>().read() };
    kind > 0 && kind & ROBUST != 0
}

/// The addresses of a mutex: start and end.
fn range(mutex: *const pthread_mutex_t) -> (usize, usize) {
    (mutex as usize, mutex as usize + size_of::<pthread_mutex_t>())
}

/// `pthread_mutex_init(3)`.
///
/// # Safety
/// As pthread_mutex_init(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut pthread_mutex_t,
    attributes: *const pthread_mutexattr_t,
) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    type Init = unsafe extern "C" fn(*mut pthread_mutex_t, *const pthread_mutexattr_t) -> c_int;
    // SAFETY: the C library has this function with this signature; the arguments are the program's.
    unsafe {
        let init = std::mem::transmute::<usize, Init>(next(&NEXT, c"pthread_mutex_init"));
        let answer = init(mutex, attributes);
        if answer == 0
            && !attributes.is_null()
            && is_robust(mutex)
            && let Some(pager) = pager()
        {
            let (start, end) = range(mutex);
            pager.keep_near(start, end);
        }
        answer
    }
}

/// `pthread_mutex_destroy(3)`.
///
/// # Safety
/// As pthread_mutex_destroy(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut pthread_mutex_t) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    type Destroy = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
    // SAFETY: as above.
    unsafe {
        let robust = is_robust(mutex);
        let destroy = std::mem::transmute::<usize, Destroy>(next(&NEXT, c"pthread_mutex_destroy"));
        let answer = destroy(mutex);
        if robust
            && answer == 0
            && let Some(pager) = pager()
        {
            let (start, end) = range(mutex);
            pager.let_go(start, end);
        }
        answer
    }
}
