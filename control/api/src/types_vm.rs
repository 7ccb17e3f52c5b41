//! Requests and responses about guests that grow and shrink.

use serde::{Deserialize, Serialize};

/// The section pool and the guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmList {
    /// The pool.
    pub sections: VmSections,
    /// The guests, by name.
    pub vms: Vec<VmStatus>,
}

/// Host memory reserved for guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmSections {
    /// All of it, bytes.
    pub capacity_bytes: u64,
    /// Boot memory of guests, and memory reserved for their devices, bytes.
    pub used_bytes: u64,
    /// Memory that no guest has, bytes.
    pub free_bytes: u64,
    /// The part of it that is lent to the page store until a guest needs it, bytes.
    pub lent_bytes: u64,
    /// Guests grow and shrink by multiples of this, bytes.
    pub section_bytes: u64,
    /// The directory of the memory files.
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
    /// `attached`, `not running` if no QEMU listens at its monitor's socket, else `out of reach`.
    pub state: String,
    /// Why it is out of reach, or the last problem.
    pub problem: Option<String>,
    /// Its size, boot memory included, bytes; null while it is out of reach.
    pub size_bytes: Option<u64>,
    /// Its boot memory, bytes.
    pub boot_bytes: u64,
    /// Memory reserved for its devices, bytes.
    pub set_aside_bytes: u64,
    /// Memory allocated beyond that for its next growth, bytes. It is part of the pool's free
    /// memory.
    pub ready_bytes: u64,
    /// Its smallest size, bytes.
    pub least_bytes: u64,
    /// Its largest size, bytes.
    pub most_bytes: u64,
    /// How large it can become: the smallest of `most_bytes`, what its profile allows and what its devices hold, bytes.
    pub ceiling_bytes: u64,
    /// The aim of a change in progress, bytes.
    pub aim_bytes: Option<u64>,
    /// Memory that it needs at once but could not get, bytes.
    pub wanted_bytes: u64,
    /// Its target by the policy, bytes.
    pub target_bytes: u64,
    /// Whether its own requests and the memory manager change its size.
    pub auto: bool,
    /// `returns-all` or `grows-far`.
    pub profile: String,
    /// The report of its agent; null if none answers.
    pub agent: Option<VmAgent>,
    /// Memory that it recently kept although asked to return it, bytes. The memory manager then does not change
    /// it for a minute.
    pub kept_bytes: u64,
    /// Ignored messages of its agent: too many, or with impossible values.
    pub ignored_messages: u64,
    /// Changes of size that reached their aim, since the daemon started.
    pub resizes_reached: u64,
    /// Changes that ended otherwise, except those refused before anything changed.
    pub resizes_failed: u64,
    /// Orders that were refused.
    pub resizes_refused: u64,
}

/// A guest's report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmAgent {
    /// Its kernel's release.
    pub kernel: String,
    /// Memory that its kernel has, bytes.
    pub total_bytes: u64,
    /// Memory available without swapping, bytes.
    pub available_bytes: u64,
    /// Free memory in the zones that its kernel can use for its own structures, bytes.
    pub kernel_free_bytes: u64,
    /// Page cache, bytes.
    pub cached_bytes: u64,
    /// Swap in use, bytes.
    pub swap_used_bytes: u64,
    /// Time for which some task waited for memory in its last interval, microseconds.
    pub stalled_us: u64,
    /// Pages read again or swapped in during its last interval.
    pub refaults: u64,
    /// Processes that its kernel's OOM killer ended since it booted.
    pub kills: u64,
}

/// A new size of a guest: one of the three members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmResize {
    /// The size, boot memory included, bytes.
    pub to_bytes: Option<u64>,
    /// Grow by this, bytes.
    pub grow_bytes: Option<u64>,
    /// Shrink by this, bytes.
    pub shrink_bytes: Option<u64>,
    /// Restore the former size if the new one is not reached in time.
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
    /// Why the size was not reached.
    pub why: Option<String>,
    /// The size before, bytes.
    pub from_bytes: u64,
    /// The aim, in whole sections from the former size, bytes.
    pub aim_bytes: u64,
    /// The size now, bytes.
    pub size_bytes: u64,
    /// Time to reserve memory, microseconds.
    pub reserve_us: u64,
    /// Time for the agent to set blocks offline, microseconds.
    pub offline_us: u64,
    /// Time for the guest to plug or unplug memory, microseconds.
    pub guest_us: u64,
    /// Time for the pool to free memory, microseconds.
    pub release_us: u64,
    /// Total time, microseconds.
    pub total_us: u64,
}

/// Whether a guest's size changes automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmAuto {
    /// Whether it does.
    pub auto: bool,
}

/// The options with which to start QEMU, so that a guest can grow and shrink. Its boot memory is
/// reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct VmArgs {
    /// QEMU's options; empty for a domain of libvirt.
    pub qemu: Vec<String>,
    /// Elements of the libvirt domain; empty for any other VM.
    pub libvirt: String,
    /// The guest's boot memory, bytes.
    pub boot_bytes: u64,
    /// The largest size that it can ever reach, bytes: QEMU lays out addresses for it at boot.
    pub max_bytes: u64,
}
