//! QEMU's guest memory in a memfd.
//!
//! A memfd can be paged only while a single process maps it: another process would read holes as zeros.
//! QEMU alone needs no sharing, so its RAM becomes a private mapping. The pager pages it like any other,
//! and leaves pages that devices have pinned. The memfd then no longer holds the guest's memory, so this
//! module refuses to send it to another process (vhost-user) or to map it a second time.

use crate::pager::pager;
use libc::{c_int, c_void, cmsghdr, msghdr, off_t, size_t};
use spillway_platform::lock::{Guard, Lock};

/// The kernel's name for the memfd of QEMU's `-object memory-backend-memfd`.
const NAME: &[u8] = b"/memfd:memory-backend-memfd";
const FILES_MAX: usize = 16;

/// Inodes of the memfds whose mappings were made private.
static FILES: Lock<Files> = Lock::new(([0; FILES_MAX], 0));
type Files = ([u64; FILES_MAX], usize);

/// Locks the list, so that a forked child gets a consistent copy.
pub fn hold_files() -> Guard<'static, Files> {
    FILES.lock()
}

/// The flags that make the first mapping of a memfd of QEMU private. None for any other mapping, which is made as the
/// program requests. An error is an errno for the program.
pub fn make_private(
    bytes: size_t,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> Option<Result<c_int, c_int>> {
    if flags & libc::MAP_SHARED == 0 || descriptor < 0 || !is_guest_ram(descriptor) {
        return None;
    }
    let (size, inode) = stat(descriptor)?;
    if offset != 0 || bytes as u64 != size {
        return None;
    }
    let mut files = FILES.lock();
    let (list, count) = &mut *files;
    if list[..*count].contains(&inode) || *count == FILES_MAX {
        return Some(Err(libc::EBUSY));
    }
    list[*count] = inode;
    *count += 1;
    Some(Ok(flags & !libc::MAP_SHARED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS))
}

fn is_guest_ram(descriptor: c_int) -> bool {
    let mut path = [0u8; 32];
    let mut name = [0u8; 64];
    let digits = write_path(&mut path, descriptor as u32);
    let Ok(path) = std::ffi::CStr::from_bytes_with_nul(&path[..digits]) else { return false };
    rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut name)
        .is_ok_and(|length| name[..length].starts_with(NAME))
}

/// Writes `/proc/self/fd/N` with a terminating zero, and returns the length with the zero.
fn write_path(path: &mut [u8; 32], number: u32) -> usize {
    let prefix = b"/proc/self/fd/";
    path[..prefix.len()].copy_from_slice(prefix);
    let count = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut left = number;
    for at in (prefix.len()..prefix.len() + count).rev() {
        path[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    path[prefix.len() + count] = 0;
    prefix.len() + count + 1
}

/// Size and inode of a descriptor's file.
fn stat(descriptor: c_int) -> Option<(u64, u64)> {
    // SAFETY: the descriptor is the program's and open, or the call fails.
    let borrowed = unsafe { rustix::fd::BorrowedFd::borrow_raw(descriptor) };
    rustix::fs::fstat(borrowed).ok().map(|stat| (stat.st_size as u64, stat.st_ino))
}

fn is_private(descriptor: c_int) -> bool {
    let files = FILES.lock();
    files.1 > 0 && stat(descriptor).is_some_and(|(_, inode)| files.0[..files.1].contains(&inode))
}

/// `sendmsg(2)`. Fails with EPERM for a message that carries a memfd whose mapping was made private.
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
    type Sendmsg = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> isize;
    // SAFETY: the program passes a valid message, whose control data is walked as in cmsg(3). glibc has this symbol
    // with this signature since 2.0.
    unsafe {
        let any = FILES.lock().1 > 0;
        if any && hands_out_guest_ram(message) {
            if let Some(pager) = pager() {
                pager.say_guest_ram_shared();
            }
            *libc::__errno_location() = libc::EPERM;
            return -1;
        }
        let found = libc::dlsym(libc::RTLD_NEXT, c"sendmsg".as_ptr());
        if found.is_null() {
            *libc::__errno_location() = libc::ENOSYS;
            return -1;
        }
        std::mem::transmute::<*mut c_void, Sendmsg>(found)(socket, message, flags)
    }
}

/// Whether a message carries the descriptor of a memfd whose mapping was made private.
///
/// # Safety
/// The message must be valid for sendmsg(2).
unsafe fn hands_out_guest_ram(message: *const msghdr) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        let mut control: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            let rights = ((*control).cmsg_level, (*control).cmsg_type);
            if rights == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(control) as *const c_int;
                let header = libc::CMSG_LEN(0) as usize;
                let count = ((*control).cmsg_len as usize - header) / size_of::<c_int>();
                if (0..count).any(|k| is_private(data.add(k).read_unaligned())) {
                    return true;
                }
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    false
}
