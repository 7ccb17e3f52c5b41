//! Separates data that different cores write, and prefetches it.

use core::ops::Deref;

use spillway_types::PAGE_BYTES;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Two cache lines, which the hardware fetches together, so that neighbours in an array do not share
/// one.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Apart<T>(pub T);

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Prefetches the first cache line of an object for writing, while the caller does something else. A
/// hint, which changes nothing.
#[inline(always)]
pub fn expect_write<T>(at: &T) {
    // SAFETY: a prefetch reads and writes no memory, whatever the address; a processor that doesn't
    // know it takes it for no operation.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Prefetches all cache lines of a page for writing. A hint, which changes nothing.
#[inline(always)]
pub(crate) fn expect_page(at: *const u8) {
    for line in (0..PAGE_BYTES).step_by(LINE_BYTES) {
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                "prefetchw [{}]", in(reg) at.wrapping_add(line),
                options(nostack, preserves_flags, readonly)
            );
        }
    }
}

/// Prefetches the first cache lines of a page for reading. A hint, which changes nothing.
#[inline(always)]
pub fn expect_read(at: *const u8) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prefetcht0 [{0}]", "prefetcht0 [{0} + 64]", "prefetcht0 [{0} + 128]", "prefetcht0 [{0} + 192]",
            in(reg) at, options(nostack, preserves_flags, readonly)
        );
    }
}
