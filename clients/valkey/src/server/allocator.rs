//! Allocates from the server's allocator, so that `used_memory` includes the module's memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;

use super::table::{Functions, lent};

/// Alignment that the server's allocator gives every block.
const ALIGNMENT: usize = 16;

/// The server's allocator; the system's in the unit tests, which have no server.
#[derive(Debug)]
pub struct ServerAllocator;

/// The server's functions, for a block of this layout. Blocks of stricter alignment come from the system; only the
/// standard library allocates such blocks here.
fn of_server(layout: Layout) -> Option<&'static Functions> {
    if layout.align() <= ALIGNMENT { lent() } else { None }
}

// SAFETY: a block is freed where it was allocated: the layout decides, and nothing is allocated before the server lends
// its functions. Taking them is the first thing that the module's entry point does.
unsafe impl GlobalAlloc for ServerAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match of_server(layout) {
            // SAFETY: any size is allowed; failure returns null.
            Some(functions) => unsafe { (functions.TryAlloc)(layout.size()).cast() },
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match of_server(layout) {
            // SAFETY: any size is allowed.
            Some(functions) => unsafe { (functions.Calloc)(1, layout.size()).cast() },
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match of_server(layout) {
            // SAFETY: the block came from the same allocator.
            Some(functions) => unsafe { (functions.Free)(block.cast::<c_void>()) },
            // SAFETY: as the caller promises.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        match of_server(layout) {
            // SAFETY: the block came from the same allocator.
            Some(functions) => unsafe { (functions.Realloc)(block.cast::<c_void>(), bytes).cast() },
            // SAFETY: as the caller promises.
            None => unsafe { System.realloc(block, layout, bytes) },
        }
    }
}
