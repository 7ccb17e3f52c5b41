//! Whether userfaultfd is available, by which interface, and with which features.

use rustix::io::Errno;
use spillway_platform::uffd::{Uffd, feature};

use crate::program::plain;
use crate::refusal::Refusal;

/// The device whose file permissions decide who may handle faults (Linux 6.1).
pub const DEVICE: &str = "/dev/userfaultfd";

/// The features that doctor names, and what each is for.
pub const FEATURES: [(u64, &str, &str); 7] = [
    (feature::MOVE, "MOVE", "evictions without a copy"),
    (feature::PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP", "known clean pages"),
    (feature::EVENT_REMAP, "EVENT_REMAP", "mremap by raw system calls"),
    (feature::EVENT_REMOVE, "EVENT_REMOVE", "madvise by raw system calls"),
    (feature::EVENT_UNMAP, "EVENT_UNMAP", "munmap by raw system calls"),
    (feature::SIGBUS, "SIGBUS", "--faults signal"),
    (feature::POISON, "POISON", "an error instead of wrong bytes"),
];

/// Refuses a run, in one line, if a required feature is missing.
pub fn check(in_signal: bool) -> Result<(), Refusal> {
    let features = Uffd::kernel_features().map_err(|error| match error {
        Errno::MFILE => {
            Refusal::usage("too many files are open to handle page faults: raise ulimit -n")
        }
        error => Refusal::usage(format!(
            "this user may not handle page faults ({}): give it read and write access to \
             {DEVICE}, or set the sysctl vm.unprivileged_userfaultfd=1; see spillway doctor",
            reason(error)
        )),
    })?;
    if features & feature::MOVE == 0 {
        return Err(Refusal::usage(
            "this kernel's userfaultfd can't move pages: use Linux 6.8 or later",
        ));
    }
    if in_signal && features & feature::SIGBUS == 0 {
        return Err(Refusal::usage(
            "this kernel does not support --faults signal: use --faults thread",
        ));
    }
    Ok(())
}

/// The error in words.
pub fn reason(error: Errno) -> String {
    plain(&error.into())
}
