//! What goes over the wire about guests that grow and shrink.

use serde::{Deserialize, Serialize};

/// The pool of sections, and the guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmList {
    /// The pool.
    pub sections: VmSections,
    /// The guests, by name.
    pub vms: Vec<VmStatus>,
}

/// Host memory that is set aside for guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmSections {
    /// All of it, bytes.
    pub capacity_bytes: u64,
    /// Boot memory of guests, and what is set aside for their devices, bytes.
    pub used_bytes: u64,
    /// What no guest has, bytes.
    pub free_bytes: u64,
    /// What of that is lent to the page store until a guest needs it, bytes.
    pub lent_bytes: u64,
    /// Guests grow and shrink by multiples of this, bytes.
    pub section_bytes: u64,
    /// Where the memory files are.
    pub dir: String,
    /// `tmpfs` or `hugetlbfs`.
    pub backing: String,
}

/// A guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmStatus {
    /// Its name.
    pub name: String,
    /// `attached`, `not running` where no QEMU listens at its monitor's socket, else `out of reach`.
    pub state: String,
    /// Why it is out of reach, or what last went wrong.
    pub problem: Option<String>,
    /// What it has, boot memory included, bytes; null while it is out of reach.
    pub size_bytes: Option<u64>,
    /// What it booted with, bytes.
    pub boot_bytes: u64,
    /// What is set aside for its devices, bytes.
    pub set_aside_bytes: u64,
    /// What is allocated beyond that, for when it grows, bytes: part of what is free in the pool.
    pub ready_bytes: u64,
    /// It is never smaller, bytes.
    pub least_bytes: u64,
    /// It is never larger, bytes.
    pub most_bytes: u64,
    /// How large it can become: the smallest of `most_bytes`, what its profile allows and what its devices hold, bytes.
    pub ceiling_bytes: u64,
    /// The size that a change under way aims at, bytes.
    pub aim_bytes: Option<u64>,
    /// What it needs at once and could not be given, bytes.
    pub wanted_bytes: u64,
    /// What the policy would let it have, bytes.
    pub target_bytes: u64,
    /// Whether its own wishes and the memory manager change its size.
    pub auto: bool,
    /// `returns-all` or `grows-far`.
    pub profile: String,
    /// What its agent says; null where none answers.
    pub agent: Option<VmAgent>,
    /// What it kept lately of what it was to give back, bytes: the memory manager leaves it alone for a minute.
    pub kept_bytes: u64,
    /// Messages of its agent that were not heard: too many, or not true.
    pub ignored_messages: u64,
    /// Changes of size that reached their aim, since the daemon started.
    pub resizes_reached: u64,
    /// Changes that ended otherwise, but for those refused before anything changed.
    pub resizes_failed: u64,
    /// Orders that were refused.
    pub resizes_refused: u64,
}

/// How a guest says that it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmAgent {
    /// Its kernel's release.
    pub kernel: String,
    /// Memory that its kernel has, bytes.
    pub total_bytes: u64,
    /// What can be had without swapping, bytes.
    pub available_bytes: u64,
    /// What is free in the zones that its kernel's own structures can use, bytes.
    pub kernel_free_bytes: u64,
    /// Page cache, bytes.
    pub cached_bytes: u64,
    /// Swap in use, bytes.
    pub swap_used_bytes: u64,
    /// Time that some task waited for memory in its last interval, microseconds.
    pub stalled_us: u64,
    /// Pages read again or swapped in during its last interval.
    pub refaults: u64,
    /// Processes that its kernel killed for want of memory since it booted.
    pub kills: u64,
}

/// A size that a guest is to have. One of the three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmResize {
    /// The size, boot memory included, bytes.
    pub to_bytes: Option<u64>,
    /// So much more, bytes.
    pub grow_bytes: Option<u64>,
    /// So much less, bytes.
    pub shrink_bytes: Option<u64>,
    /// Go back to the former size when this one is not reached in time.
    pub roll_back: bool,
    /// Shrink it even if less than its reserve would be available in it.
    pub force: bool,
}

/// How a change of size ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmOutcome {
    /// `reached`, `partial`, `rolled back`, `superseded` or `lost`.
    pub end: String,
    /// Why it did not get there.
    pub why: Option<String>,
    /// The size before, bytes.
    pub from_bytes: u64,
    /// The size that was aimed at, in whole sections from the size before, bytes.
    pub aim_bytes: u64,
    /// The size now, bytes.
    pub size_bytes: u64,
    /// Setting memory aside, microseconds.
    pub reserve_us: u64,
    /// The agent setting blocks offline, microseconds.
    pub offline_us: u64,
    /// The guest plugging or unplugging, microseconds.
    pub guest_us: u64,
    /// The pool getting memory back, microseconds.
    pub release_us: u64,
    /// All of it, microseconds.
    pub total_us: u64,
}

/// Whether a guest's size changes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmAuto {
    /// Whether it does.
    pub auto: bool,
}

/// How QEMU is to be started so that a guest can grow and shrink. Its boot memory is set aside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmArgs {
    /// QEMU's options; empty for a domain of libvirt.
    pub qemu: Vec<String>,
    /// Elements of the domain of libvirt; empty for any other VM.
    pub libvirt: String,
    /// What the guest boots with, bytes.
    pub boot_bytes: u64,
    /// The largest size that it can ever have, bytes: QEMU lays out addresses for it at boot.
    pub max_bytes: u64,
}
