//! Errors that refuse a handover. Each message is one line, with the remedy.

use rustix::io::Errno;

/// The reason why guest memory was not taken over.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The monitor sent no complete handover in time.
    #[error("the monitor sent no complete handover within {0} s")]
    Late(u64),
    /// It closed the connection first.
    #[error("the monitor closed the connection before its handover was complete")]
    Closed,
    /// The message is longer than any handover.
    #[error("the message is longer than {0} bytes")]
    Long(usize),
    /// The text does not follow the handshake.
    #[error("the message is not a handover of {monitor}: {why}")]
    Message {
        /// The monitor whose handshake was expected.
        monitor: &'static str,
        /// The problem.
        why: String,
    },
    /// An unknown version of the handshake.
    #[error("version {0} of the handover is unknown; this is version 1")]
    Version(u64),
    /// The memory is not registered as the manager needs it.
    #[error("the memory is registered for '{0}'; register it for MISSING and WP, without WP_ASYNC")]
    Mode(String),
    /// No descriptor came.
    #[error("no descriptor came with the message; attach the userfaultfd by SCM_RIGHTS")]
    NoDescriptor,
    /// More descriptors than a message can carry.
    #[error("more than {0} descriptors came")]
    ManyDescriptors(usize),
    /// The first descriptor is another kind of file.
    #[error("the first descriptor is not a userfaultfd but {0}")]
    NoUserfaultfd(String),
    /// A descriptor is not a memory file that can be read and punched.
    #[error("memory file {file}: {why}")]
    File {
        /// Its number among the memory files.
        file: usize,
        /// The problem.
        why: String,
    },
    /// No regions at all.
    #[error("the handover names no region")]
    NoRegion,
    /// Too many regions.
    #[error("the handover names {0} regions, more than {max}", max = crate::REGIONS_MAX)]
    ManyRegions(usize),
    /// A region of no bytes.
    #[error("region {0} is empty")]
    Empty(usize),
    /// Unsupported page sizes.
    #[error(
        "region {region}: pages of {bytes} bytes; 4096 and 2097152 are served, 4096 alone with memory files"
    )]
    PageSize {
        /// The index of the region.
        region: usize,
        /// Its page size.
        bytes: u64,
    },
    /// Regions of different page sizes.
    #[error("region {0} has another page size than region 0")]
    MixedPages(usize),
    /// An address, size or offset is not a multiple of the page size.
    #[error("region {region}: its {what} {value:#x} is not a multiple of its page size")]
    Unaligned {
        /// The index of the region.
        region: usize,
        /// The name of the number.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// A region ends beyond the address space.
    #[error("region {0} goes past the end of the address space")]
    Wraps(usize),
    /// A region names a descriptor that was not sent.
    #[error("region {region} misses its descriptor: it names memory file {file}, and {came} came")]
    Missing {
        /// The index of the region.
        region: usize,
        /// The index of the file that it names.
        file: usize,
        /// The number of descriptors that came.
        came: usize,
    },
    /// A region ends beyond its file.
    #[error("region {region} ends at byte {end} of its memory file, which has {bytes}")]
    Beyond {
        /// The index of the region.
        region: usize,
        /// The end of the region in the file, bytes.
        end: u64,
        /// The length of the file, bytes.
        bytes: u64,
    },
    /// Two regions at one address.
    #[error("regions {0} and {1} overlap in the monitor's memory")]
    Overlap(usize, usize),
    /// Two regions in one part of a file.
    #[error("regions {0} and {1} overlap in their memory file")]
    FileOverlap(usize, usize),
    /// A region is not registered with the descriptor, or not for write-protection.
    #[error("region {region} is not registered with the userfaultfd for MISSING and WP ({errno})")]
    Unregistered {
        /// The index of the region.
        region: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// A system call failed.
    #[error("can't {what}: {errno}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl Error {
    /// Makes a function for `map_err` that turns an errno into [`Self::System`].
    pub fn system(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { what, errno }
    }
}
