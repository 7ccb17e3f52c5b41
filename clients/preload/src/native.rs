//! The library's own heap. It never uses managed memory or the program's allocator.

use dlmalloc::{Allocator, Dlmalloc};
use spillway_platform::PAGE_SIZE;
use spillway_platform::lock::Lock;
use spillway_platform::memory::map_native;
use std::alloc::{GlobalAlloc, Layout};

/// Native mappings as the source of dlmalloc's memory.
struct Mappings;

// SAFETY: `alloc` returns new private mappings; `free` and `free_part` unmap the given memory; nothing is remapped.
unsafe impl Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        map_native(size).map_or((std::ptr::null_mut(), 0, 0), |base| (base as *mut u8, size, 0))
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, base: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: dlmalloc returns the end of a mapping from `alloc`.
        unsafe { rustix::mm::munmap(base.add(new).cast(), old - new).is_ok() }
    }

    fn free(&self, base: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc returns a mapping from `alloc`.
        unsafe { rustix::mm::munmap(base.cast(), size).is_ok() }
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE_SIZE
    }
}

/// dlmalloc over native mappings, behind a lock that needs no thread-local storage.
pub struct NativeHeap(Lock<Dlmalloc<Mappings>>);

impl NativeHeap {
    /// An empty heap.
    pub const fn new() -> Self {
        Self(Lock::new(Dlmalloc::new_with_allocator(Mappings)))
    }
}

// SAFETY: dlmalloc keeps the contract of GlobalAlloc; the lock admits one call at a time.
unsafe impl GlobalAlloc for NativeHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller gives a layout of at least one byte.
        unsafe { self.0.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.0.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller returns a block of this heap with its layout.
        unsafe { self.0.lock().free(block, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.0.lock().realloc(block, layout.size(), layout.align(), size) }
    }
}
