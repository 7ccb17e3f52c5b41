//! The time slice of a queue's thread.
//!
//! The guests' disks share the host's processors, also with the guests themselves. Of the threads that are ready, the
//! kernel lets that one run first whose slice would end first (EEVDF), and then for its whole slice, some milliseconds.
//! A request takes some microseconds. So a guest with one request at a time would often wait for the slice of another
//! guest that keeps its queues full. With a short slice, a queue's thread runs sooner and is replaced sooner. Its share of
//! the processor stays the same.

use spillway_platform::sys::syscall6;

/// The slice, nanoseconds: the shortest that the kernel grants.
const SLICE_NS: u64 = 100_000;
const SYS_SCHED_SETATTR: usize = 314;
const SYS_SCHED_GETATTR: usize = 315;
/// The policies that have slices.
const SCHED_OTHER: u32 = 0;
const SCHED_BATCH: u32 = 3;

/// `struct sched_attr` of Linux 3.14, see sched_setattr(2).
#[derive(Debug, Default)]
#[repr(C)]
struct Attributes {
    bytes: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// With the policies above, the slice since Linux 6.12; earlier kernels ignore it.
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const ATTRIBUTES_BYTES: usize = size_of::<Attributes>();

/// The attributes of the calling thread, if the kernel tells them.
fn attributes() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    let place = &raw mut attributes;
    // SAFETY: the kernel writes at most that many bytes to the place, which outlives the call.
    let known =
        unsafe { syscall6(SYS_SCHED_GETATTR, [0, place as usize, ATTRIBUTES_BYTES, 0, 0, 0]) };
    known.ok().map(|_| attributes)
}

/// Gives the calling thread a short slice. If the kernel refuses, the thread keeps its slice: everything works as well, but
/// guests disturb each other more.
pub fn shorten() {
    let Some(known) = attributes() else { return };
    if ![SCHED_OTHER, SCHED_BATCH].contains(&known.policy) {
        return;
    }
    let wanted = Attributes { bytes: ATTRIBUTES_BYTES as u32, runtime_ns: SLICE_NS, ..known };
    let place = &raw const wanted;
    // SAFETY: the kernel only reads the attributes, which outlive the call.
    let _ = unsafe { syscall6(SYS_SCHED_SETATTR, [0, place as usize, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use rustix::process::setpriority_process;

    use super::*;

    #[test]
    fn the_slice_is_short_and_the_weight_stays() {
        std::thread::spawn(|| {
            // Of this thread only.
            setpriority_process(None, 7).unwrap();
            let before = attributes().unwrap();
            shorten();
            let after = attributes().unwrap();
            assert_eq!((after.policy, after.nice), (before.policy, 7));
            // Before Linux 6.12 there is no such attribute.
            let wanted = if before.runtime_ns == 0 { 0 } else { SLICE_NS };
            assert_eq!(after.runtime_ns, wanted, "it was {}", before.runtime_ns);
        })
        .join()
        .unwrap();
    }
}
