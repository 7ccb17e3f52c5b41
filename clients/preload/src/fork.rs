//! Fork handlers: the pager at rest before, a pager for each process after.

use crate::run::pager;
use libc::{c_int, c_void};

/// Offsets of `struct _IO_FILE` in glibc for x86-64, part of its ABI.
const FILE_CHAIN: usize = 0x68;
const FILE_LOCK: usize = 0x88;
/// Size of the lock that a file points to.
const LOCK_BYTES: usize = 16;

unsafe extern "C" {
    static _IO_list_all: usize;
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

/// Registers the handlers. Being the first to register, they run last before the fork and first
/// after it.
pub fn prepare() {
    // SAFETY: three functions that live as long as this library, which is never unloaded.
    let _ = unsafe { pthread_atfork(before, after_in_parent, after_in_child) };
}

/// Before a fork.
pub extern "C" fn before() {
    if let Some(pager) = pager() {
        pager.before_fork(touch_open_files);
    }
}

/// After a fork, in the parent, also when it failed.
pub extern "C" fn after_in_parent() {
    if let Some(pager) = pager() {
        pager.after_fork_in_parent();
    }
}

/// After a fork, in the child.
pub extern "C" fn after_in_child() {
    let Some(pager) = pager() else { return };
    if let Err(error) = pager.after_fork_in_child(std::process::id()) {
        pager.refuse_fork(error);
        // The child's far pages are out of reach: it must not go on and read zeros.
        // SAFETY: raising a signal in this process.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::raise(libc::SIGBUS);
            libc::_exit(128 + libc::SIGBUS);
        }
    }
}

/// In the child of a program with threads, glibc resets the locks of all open files before it runs
/// any handler: those files must be resident. Touches each and its lock.
fn touch_open_files(may_read: &mut dyn FnMut(usize) -> bool) {
    // SAFETY: the list of open files is only changed under locks that the C library holds while
    // fork handlers run or by threads that open files at this moment, whose entries are complete
    // before they are linked.
    unsafe {
        let mut file = _IO_list_all;
        while file != 0 {
            let (lock, chain) = (file + FILE_LOCK, file + FILE_CHAIN);
            if !(may_read(file) && may_read(lock) && may_read(chain)) {
                return;
            }
            let lock = std::ptr::read_volatile(lock as *const usize);
            if lock != 0 && !(may_read(lock) && may_read(lock + LOCK_BYTES - 1)) {
                return;
            }
            file = std::ptr::read_volatile(chain as *const usize);
        }
    }
}

/// `syscall(2)`: calls that change mappings or make processes go the same way as the C library's
/// functions for them.
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
    use crate::{locks, mappings};
    let at = |address: usize| address as *mut c_void;
    // SAFETY: passed on as the program gave it.
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
            libc::SYS_fork => fork_by(number, [0; 6]),
            libc::SYS_clone if a & libc::CLONE_VM as usize == 0 => {
                fork_by(number, [a, b, c, d, e, f])
            }
            libc::SYS_clone3 if b >= 8 && *(a as *const u64) & libc::CLONE_VM as u64 == 0 => {
                fork_by(number, [a, b, c, d, e, f])
            }
            libc::SYS_ioctl => i64::from(mappings::ioctl(a as c_int, b as libc::c_ulong, c)),
            _ => crate::raw::call(number, [a, b, c, d, e, f]) as i64,
        }
    }
}

/// A fork by bare system call, prepared like the C library's.
///
/// # Safety
/// As the system call itself, which must make a process with memory of its own.
unsafe fn fork_by(number: libc::c_long, args: [usize; 6]) -> libc::c_long {
    before();
    // SAFETY: passed on as the program gave it.
    let pid = unsafe { crate::raw::call(number, args) };
    if pid == 0 {
        after_in_child();
    } else {
        after_in_parent();
    }
    pid as libc::c_long
}
