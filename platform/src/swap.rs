//! Threads that serve a disk which the kernel swaps onto.

use rustix::io::Errno;

use crate::sys::{number, syscall6};

/// Marks the calling thread, and those that it starts, as ones that the kernel may wait for when it is out of memory
/// (PR_SET_IO_FLUSHER): their allocations do not wait for pages to be written out, perhaps by themselves.
///
/// It opens no reserve: see [`open_reserve`].
///
/// # Errors
/// Without CAP_SYS_RESOURCE.
pub fn serve_swap() -> Result<(), Errno> {
    rustix::process::configure_io_flusher_behavior(true)
}

/// Gives the calling thread, and those that it starts, the least real-time priority (SCHED_RR, 1): the kernel lets such
/// threads have half of what lies below its lowest watermark, before Linux 6.3 a quarter (`gfp_to_alloc_flags` and `__zone_watermark_ok` in
/// mm/page_alloc.c). Programs that allocate faster than memory is written out hold free memory at that watermark, and a
/// thread that writes it out by the network could take not a page more, for ever.
///
/// # Errors
/// EPERM without CAP_SYS_NICE or RLIMIT_RTPRIO, and where the process's control group has no real-time share.
pub fn open_reserve() -> Result<(), Errno> {
    const SCHED_RR: usize = 2;
    let priority = 1_i32;
    let args = [0, SCHED_RR, &raw const priority as usize, 0, 0, 0];
    // SAFETY: the kernel reads a `struct sched_param`, which is one int, and changes how this thread is scheduled.
    unsafe { syscall6(number::SCHED_SETSCHEDULER, args)? };
    Ok(())
}
