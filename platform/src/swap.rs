//! Threads that serve a disk which the kernel swaps onto.

use rustix::io::Errno;

/// Marks the calling thread, and those that it starts, as ones that the kernel may wait for when it is out of memory
/// (PR_SET_IO_FLUSHER): their allocations do not wait for pages to be written out, perhaps by themselves.
///
/// It opens no reserve: what the network takes for its pages must fit between the kernel's watermarks, so
/// `min_free_kbytes` has to be large. A real-time priority would open the reserve, but on a machine of one processor a
/// thread of SCHED_FIFO that waits for memory does not let those run that free it.
///
/// # Errors
/// Without CAP_SYS_RESOURCE.
pub fn serve_swap() -> Result<(), Errno> {
    rustix::process::configure_io_flusher_behavior(true)
}
