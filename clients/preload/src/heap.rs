//! The malloc family: mimalloc, whose memory comes from this library's own `mmap` and so is
//! managed. glibc's allocator can't be used: it reaches brk, mmap, mremap and munmap by ways that
//! no library can take over.

use libc::{c_int, c_void, size_t};
use libmimalloc_sys as mi;
use spillway_platform::PAGE_SIZE;

macro_rules! same {
    ($(#[$doc:meta] $name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)? = $target:path;)*) => {$(
        #[$doc]
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $answer)? {
            // SAFETY: the caller keeps the C library's contract, which is mimalloc's too.
            unsafe { $target($($argument),*) }
        }
    )*};
}

same! {
    /// `malloc(3)`.
    malloc(bytes: size_t) -> *mut c_void = mi::mi_malloc;
    /// `calloc(3)`.
    calloc(count: size_t, bytes: size_t) -> *mut c_void = mi::mi_calloc;
    /// `realloc(3)`.
    realloc(block: *mut c_void, bytes: size_t) -> *mut c_void = mi::mi_realloc;
    /// `free(3)`.
    free(block: *mut c_void) = mi::mi_free;
    /// `reallocarray(3)`.
    reallocarray(block: *mut c_void, count: size_t, bytes: size_t) -> *mut c_void = mi::mi_reallocn;
    /// `malloc_usable_size(3)`.
    malloc_usable_size(block: *const c_void) -> size_t = mi::mi_usable_size;
    /// `posix_memalign(3)`.
    posix_memalign(block: *mut *mut c_void, align: size_t, bytes: size_t) -> c_int = mi::mi_posix_memalign;
}

/// `memalign(3)`.
///
/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: any size; mimalloc answers null for an alignment that is no power of two.
    unsafe { mi::mi_malloc_aligned(bytes, align) }
}

/// `aligned_alloc(3)`.
///
/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: as `memalign`.
    unsafe { memalign(align, bytes) }
}

/// `valloc(3)`: on a page boundary.
///
/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(bytes: size_t) -> *mut c_void {
    // SAFETY: as `memalign`.
    unsafe { memalign(PAGE_SIZE, bytes) }
}

/// `pvalloc(3)`: whole pages.
///
/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(bytes: size_t) -> *mut c_void {
    let Some(bytes) = bytes.checked_next_multiple_of(PAGE_SIZE) else {
        return std::ptr::null_mut();
    };
    // SAFETY: as `memalign`.
    unsafe { memalign(PAGE_SIZE, bytes.max(PAGE_SIZE)) }
}
