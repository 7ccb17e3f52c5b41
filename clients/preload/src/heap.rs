//! The malloc family: mimalloc, whose memory comes from this library's own `mmap` and so is managed.
//! glibc's allocator can't be used: it calls brk, mmap, mremap and munmap internally, where no library can
//! interpose.

use crate::raw;
use libc::{c_int, c_void, size_t};
use libmimalloc_sys as mi;
use spillway_platform::PAGE_SIZE;

/// From this size on the kernel is asked whether it would map a block. mimalloc maps by MAP_NORESERVE, which the
/// kernel does not refuse whatever the size.
const ASKED_BYTES_MIN: usize = 64 << 20;

macro_rules! allocator {
    ($(#[$doc:meta] $name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)? = $work:expr;)*) => {$(
        #[$doc]
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $answer)? {
            // SAFETY: the caller keeps the C library's contract, which is mimalloc's too.
            unsafe { $work }
        }
    )*};
}

allocator! {
    /// `malloc(3)`.
    malloc(bytes: size_t) -> *mut c_void = given(bytes, || mi::mi_malloc(bytes));
    /// `calloc(3)`.
    calloc(count: size_t, bytes: size_t) -> *mut c_void =
        given(count.saturating_mul(bytes), || mi::mi_calloc(count, bytes));
    /// `realloc(3)`. Like the C library's, it frees a block whose new size is 0.
    realloc(block: *mut c_void, bytes: size_t) -> *mut c_void = if bytes == 0 && !block.is_null() {
        mi::mi_free(block);
        std::ptr::null_mut()
    } else {
        given(bytes.saturating_sub(mi::mi_usable_size(block)), || mi::mi_realloc(block, bytes))
    };
    /// `free(3)`.
    free(block: *mut c_void) = mi::mi_free(block);
    /// `reallocarray(3)`.
    reallocarray(block: *mut c_void, count: size_t, bytes: size_t) -> *mut c_void =
        match count.checked_mul(bytes) {
            Some(bytes) => realloc(block, bytes),
            None => told(std::ptr::null_mut()),
        };
    /// `malloc_usable_size(3)`.
    malloc_usable_size(block: *const c_void) -> size_t = mi::mi_usable_size(block);
    /// `posix_memalign(3)`.
    posix_memalign(block: *mut *mut c_void, align: size_t, bytes: size_t) -> c_int =
        if is_granted(bytes) { mi::mi_posix_memalign(block, align, bytes) } else { libc::ENOMEM };
    /// `memalign(3)`. Like the C library's, it rounds the alignment up to a power of two.
    memalign(align: size_t, bytes: size_t) -> *mut c_void = match align.checked_next_power_of_two() {
        Some(align) => given(bytes, || mi::mi_malloc_aligned(bytes, align)),
        None => told(std::ptr::null_mut()),
    };
    /// `aligned_alloc(3)`.
    aligned_alloc(align: size_t, bytes: size_t) -> *mut c_void = memalign(align, bytes);
    /// `valloc(3)`: on a page boundary.
    valloc(bytes: size_t) -> *mut c_void = memalign(PAGE_SIZE, bytes);
    /// `pvalloc(3)`: whole pages.
    pvalloc(bytes: size_t) -> *mut c_void = match bytes.checked_next_multiple_of(PAGE_SIZE) {
        Some(bytes) => memalign(PAGE_SIZE, bytes.max(PAGE_SIZE)),
        None => told(std::ptr::null_mut()),
    };
    /// `malloc_trim(3)`: gives the pages of free blocks back. Whether there were any.
    malloc_trim(_keep: size_t) -> c_int = {
        let before = crate::mappings::dropped_calls();
        mi::mi_collect(true);
        c_int::from(crate::mappings::dropped_calls() > before)
    };
    /// `mallinfo2(3)`.
    mallinfo2() -> libc::mallinfo2 = libc::mallinfo2 {
        arena: held_bytes(),
        uordblks: held_bytes(),
        ..std::mem::zeroed()
    };
    /// `mallinfo(3)`, whose numbers are cut off, as the C library's.
    mallinfo() -> libc::mallinfo = libc::mallinfo {
        arena: held_bytes() as c_int,
        uordblks: held_bytes() as c_int,
        ..std::mem::zeroed()
    };
    // The C library's names for programs with allocators of their own. A block allocated by one name may be freed by
    // the other.
    /// `malloc(3)`.
    __libc_malloc(bytes: size_t) -> *mut c_void = malloc(bytes);
    /// `calloc(3)`.
    __libc_calloc(count: size_t, bytes: size_t) -> *mut c_void = calloc(count, bytes);
    /// `realloc(3)`.
    __libc_realloc(block: *mut c_void, bytes: size_t) -> *mut c_void = realloc(block, bytes);
    /// `free(3)`.
    __libc_free(block: *mut c_void) = free(block);
    /// `memalign(3)`.
    __libc_memalign(align: size_t, bytes: size_t) -> *mut c_void = memalign(align, bytes);
    /// `valloc(3)`.
    __libc_valloc(bytes: size_t) -> *mut c_void = valloc(bytes);
    /// `pvalloc(3)`.
    __libc_pvalloc(bytes: size_t) -> *mut c_void = pvalloc(bytes);
}

/// A block that `make` makes, unless the kernel grants no more bytes than that.
#[inline]
fn given(bytes: usize, make: impl FnOnce() -> *mut c_void) -> *mut c_void {
    told(if is_granted(bytes) { make() } else { std::ptr::null_mut() })
}

/// Whether the kernel would map so many bytes for a program that means to use them.
#[inline]
fn is_granted(bytes: usize) -> bool {
    bytes < ASKED_BYTES_MIN || would_map(bytes)
}

#[cold]
fn would_map(bytes: usize) -> bool {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping that nobody else knows, and its end.
    unsafe {
        let made = raw::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
        made != libc::MAP_FAILED
            && raw::call(libc::SYS_munmap, [made as usize, bytes, 0, 0, 0, 0]) == 0
    }
}

/// Sets `errno` to ENOMEM if there is no block, as the C library does.
#[inline]
fn told(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        // SAFETY: `__errno_location` is valid on every thread of the program.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    block
}

/// Bytes that the allocator holds. It does not count which of them lie in free blocks.
fn held_bytes() -> usize {
    let (mut held, none) = (0, std::ptr::null_mut());
    // SAFETY: one figure goes to a local, the others nowhere.
    unsafe { mi::mi_process_info(none, none, none, none, none, &raw mut held, none, none) };
    held
}
