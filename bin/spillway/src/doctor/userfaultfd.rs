//! Whether userfaultfd can be had, which way, and what it can do.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::program::plain;
use crate::refusal::Refusal;

/// The device whose file permissions decide who may handle faults (Linux 6.1).
pub const DEVICE: &str = "/dev/userfaultfd";
/// UFFD_FEATURE_MOVE of linux/userfaultfd.h (Linux 6.8): pages leave without being copied.
pub const MOVE: u64 = 1 << 16;
/// UFFD_FEATURE_SIGBUS: the faulting thread gets the fault itself.
pub const SIGBUS: u64 = 1 << 7;

/// The features that doctor names, by bit of linux/userfaultfd.h, and what each is for.
pub const FEATURES: [(u64, &str, &str); 8] = [
    (MOVE, "MOVE", "evictions without a copy"),
    (1 << 0, "PAGEFAULT_FLAG_WP", "known clean pages, and the way out for shared ones"),
    (1 << 2, "EVENT_REMAP", "mremap by raw system calls"),
    (1 << 3, "EVENT_REMOVE", "madvise by raw system calls"),
    (1 << 6, "EVENT_UNMAP", "munmap by raw system calls"),
    (SIGBUS, "SIGBUS", "--faults signal"),
    (1 << 14, "POISON", "an error instead of wrong bytes"),
    (1 << 5, "MISSING_SHMEM", "guest memory of QEMU"),
];

/// How a descriptor was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the device.
    Device,
    /// By the system call.
    SystemCall,
}

/// What this kernel and user have.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// How.
    pub way: Way,
    /// The kernel's feature bits.
    pub features: u64,
}

/// Tries the device, then the system call, and asks for the features.
///
/// # Errors
/// The device's error, for it is what the user can mend; ENOSYS where the kernel has neither.
pub fn probe() -> io::Result<Found> {
    let (way, descriptor) = match by_device() {
        Ok(descriptor) => (Way::Device, descriptor),
        Err(device_error) => match by_system_call() {
            Ok(descriptor) => (Way::SystemCall, descriptor),
            Err(error) if device_error.kind() == io::ErrorKind::NotFound => return Err(error),
            Err(_) => return Err(device_error),
        },
    };
    let mut api = Api { api: API_VERSION, features: 0, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `Api`.
    unsafe { ioctl::ioctl(&descriptor, ioctl::Updater::<{ UFFDIO_API }, Api>::new(&mut api))? };
    Ok(Found { way, features: api.features })
}

/// Refuses in one line what a run can't do without.
pub fn check(in_signal: bool) -> Result<(), Refusal> {
    let found = probe().map_err(|error| {
        Refusal::usage(format!(
            "this user may not handle page faults ({}): give it read and write access to \
             {DEVICE}, or set the sysctl vm.unprivileged_userfaultfd=1; see spillway doctor",
            plain(&error)
        ))
    })?;
    if found.features & MOVE == 0 {
        return Err(Refusal::usage(
            "this kernel's userfaultfd can't move pages: take Linux 6.8 or later",
        ));
    }
    if in_signal && found.features & SIGBUS == 0 {
        return Err(Refusal::usage("this kernel has no --faults signal: take --faults thread"));
    }
    Ok(())
}

fn by_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and gives a new descriptor.
    Ok(unsafe { ioctl::ioctl(device.as_fd(), NewDescriptor)? })
}

fn by_system_call() -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is registered with no range: no fault depends on it.
    Ok(unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC)? })
}

/// UFFD_API.
const API_VERSION: u64 = 0xaa;
/// UFFDIO_API, _IOWR(0xAA, 0x3F, struct uffdio_api).
const UFFDIO_API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);

/// struct uffdio_api.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// USERFAULTFD_IOC_NEW, _IO(0xAA, 0).
struct NewDescriptor;

// SAFETY: the ioctl reads no memory; its argument is the descriptor's flags, and what it returns is
// a new descriptor that is nobody else's.
unsafe impl Ioctl for NewDescriptor {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(0xaa, 0)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(UserfaultfdFlags::CLOEXEC.bits() as usize)
    }

    unsafe fn output_from_ptr(result: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the caller passes what the kernel returned, a fresh descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }
}
