//! Swap space, and threads that serve a disk on which the kernel swaps.

use core::ffi::CStr;

use rustix::io::Errno;

use crate::sys::{number, syscall6};

/// Marks the calling thread and the threads that it starts as IO flushers (PR_SET_IO_FLUSHER): threads for which the
/// kernel waits when it is out of memory. Their allocations never wait for pages to be written out, which they might
/// have to do themselves.
///
/// This does not let them use the kernel's memory reserve: see [`open_reserve`].
///
/// # Errors
/// `PERM` without CAP_SYS_RESOURCE.
pub fn serve_swap() -> Result<(), Errno> {
    rustix::process::configure_io_flusher_behavior(true)
}

/// Gives the calling thread and the threads that it starts the lowest real-time priority (SCHED_RR, 1). The kernel lets
/// such threads allocate half of the memory below its lowest watermark, before Linux 6.3 a quarter
/// (`gfp_to_alloc_flags` and `__zone_watermark_ok` in mm/page_alloc.c). Programs that allocate faster than memory is
/// written out keep free memory at that watermark. Without the priority, a thread that writes pages out over the
/// network could then never allocate a page.
///
/// # Errors
/// `PERM` without CAP_SYS_NICE or RLIMIT_RTPRIO, and if the process's cgroup has no real-time share.
pub fn open_reserve() -> Result<(), Errno> {
    const SCHED_RR: usize = 2;
    let priority = 1_i32;
    let args = [0, SCHED_RR, &raw const priority as usize, 0, 0, 0];
    // SAFETY: the kernel reads a `struct sched_param`, which is one int, and changes how this thread is scheduled.
    unsafe { syscall6(number::SCHED_SETSCHEDULER, args)? };
    Ok(())
}

/// Bytes of the header: the first page of swap space, on machines with pages of 4096 bytes.
pub const HEADER_BYTES: usize = 4096;

/// The header of swap space of `bytes` (`union swap_header` in linux/swap.h). It keeps the first 15 bytes of `label`.
/// None if the space is too short, or longer than the kernel accepts.
pub fn header(bytes: u64, uuid: u128, label: &str) -> Option<[u8; HEADER_BYTES]> {
    /// Fewest pages that the kernel accepts, including the header.
    const PAGES_MIN: u32 = 2;
    let pages = u32::try_from(bytes / HEADER_BYTES as u64).ok()?;
    let last_page = Some(pages).filter(|pages| *pages >= PAGES_MIN)? - 1;
    let mut page = [0; HEADER_BYTES];
    // The first 1024 bytes are left to a boot loader.
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[1036..1052].copy_from_slice(&uuid.to_be_bytes());
    let label = &label.as_bytes()[..label.len().min(15)];
    page[1052..1052 + label.len()].copy_from_slice(label);
    page[HEADER_BYTES - 10..].copy_from_slice(b"SWAPSPACE2");
    Some(page)
}

/// Turns swapping on for a device that has a header, with a priority from 0 to 32767. The kernel discards clusters of
/// pages that it no longer needs.
///
/// # Errors
/// Those of swapon(2).
pub fn swap_on(path: &CStr, priority: u16) -> Result<(), Errno> {
    const PREFER: usize = 0x8000;
    const DISCARD: usize = 0x10000;
    const DISCARD_PAGES: usize = 0x40000;
    let flags = PREFER | DISCARD | DISCARD_PAGES | usize::from(priority & 0x7fff);
    let args = [path.as_ptr() as usize, flags, 0, 0, 0, 0];
    // SAFETY: the kernel reads a string that ends with a zero, and no memory of this process changes.
    unsafe { syscall6(number::SWAPON, args)? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected bytes are those of `mkswap -L spillway -U 00112233-4455-6677-8899-aabbccddeeff` of util-linux 2.38.
    #[test]
    fn a_header_is_as_mkswap_writes_it() {
        let page = header(1 << 20, 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff, "spillway").unwrap();
        let (before, after) = (&page[..1024], &page[1068..HEADER_BYTES - 10]);
        assert!(before.iter().chain(after).all(|byte| *byte == 0));
        assert_eq!(page[1024..1036], [1, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0]);
        let uuid = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
        assert_eq!(page[1036..1052], uuid);
        assert_eq!(&page[1052..1068], b"spillway\0\0\0\0\0\0\0\0");
        assert_eq!(&page[HEADER_BYTES - 10..], b"SWAPSPACE2");
        assert_eq!(header(4096, 0, ""), None);
        assert_eq!(header(1 << 50, 0, ""), None);
    }

    #[test]
    fn what_is_no_swap_space_is_refused() {
        // Without the privilege, the kernel refuses every path with EPERM.
        let is_one_of =
            |path, its| matches!(swap_on(path, 1), Err(it) if it == its || it == Errno::PERM);
        assert!(is_one_of(c"/dev/null", Errno::INVAL));
        assert!(is_one_of(c"/nowhere", Errno::NOENT));
    }
}
