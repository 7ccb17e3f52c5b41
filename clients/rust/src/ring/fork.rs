//! Detects that this process is a child of the one that opened a store.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Error;

const PAGE_BYTES: usize = 4096;

/// A page that is wiped in a forked child.
#[derive(Debug)]
pub struct Owner {
    page: *mut c_void,
}

// SAFETY: the page belongs to no thread, and only an atomic in it is used.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// Marks this process as the owner.
    pub fn new() -> Result<Self, Error> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address that the kernel chooses; the advice changes
        // it only in a child.
        let page = unsafe {
            let page =
                rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE)?;
            rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork)?;
            page
        };
        let owner = Self { page };
        owner.mark().store(1, Ordering::Relaxed);
        Ok(owner)
    }

    fn mark(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as `self` lives, and aligned.
        unsafe { &*self.page.cast() }
    }

    /// Whether this is the process that created it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.mark().load(Ordering::Relaxed) != 0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: no reference into the page exists; unmapping an own mapping can't fail.
        let _ = unsafe { rustix::mm::munmap(self.page, PAGE_BYTES) };
    }
}
