//! What a guest may have, and how long things may take.

use crate::agent::Profile;

/// The settings of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a section: sizes change by multiples of it. A multiple of the devices' block size.
    pub section_bytes: u64,
    /// The guest is never smaller, bytes, what it booted with included.
    pub least_bytes: u64,
    /// The guest is never larger, bytes, what it booted with included.
    pub most_bytes: u64,
    /// What the agent keeps free in the guest, bytes.
    pub reserve_bytes: u64,
    /// How the guest uses what it is given.
    pub profile: Profile,
    /// Whether the guest's own wishes and the memory manager change its size; otherwise the operator alone does.
    pub auto: bool,
    /// How long the guest may take for a change of size, microseconds.
    pub resize_timeout_us: u64,
    /// How long the agent may take to set blocks offline before the device is asked all the same, microseconds.
    pub offline_timeout_us: u64,
    /// How often the agent tells how the guest is, milliseconds.
    pub interval_ms: u32,
}

impl Settings {
    /// The largest size that a guest which booted with `boot_bytes` may be given, bytes. Where all new memory is movable,
    /// what the kernel needs for itself comes out of the boot memory alone: beyond 16 times that, guests
    /// were seen to fail or panic.
    pub fn ceiling_bytes(&self, boot_bytes: u64) -> u64 {
        match self.profile {
            Profile::ReturnsAll => self.most_bytes.min(boot_bytes.saturating_mul(GROWTH_MAX)),
            Profile::GrowsFar => self.most_bytes,
        }
    }
}

/// How many times its boot memory a guest of profile [`Profile::ReturnsAll`] may be. Page descriptors are 1/64 of all
/// memory: at 16 times they take a quarter of the boot memory, and the rest of the kernel has three.
pub const GROWTH_MAX: u64 = 16;
/// A page's descriptor takes 64 of its 4096 bytes.
pub const DESCRIPTORS_PART: u64 = 64;
/// What must stay free in the kernel's zones beside the descriptors of new pages, or as much as those take, bytes.
pub const KERNEL_FREE_MIN_BYTES: u64 = 8 << 20;
/// How often the driver reads the devices' sizes while the guest changes, microseconds.
pub const POLL_US: u64 = 2_000;
/// How often it does at rest, microseconds.
pub const REST_POLL_US: u64 = 1_000_000;
/// How often the size is asked for again while the guest does not get there: virtio-mem's driver waits longer and
/// longer by itself, 39 s at last, but tries at once when it is asked anew.
pub const NUDGE_US: u64 = 900_000;
/// How long a device may take to rest after a change was broken off, microseconds.
pub const FREEZE_US: u64 = 2_000_000;
/// How long a guest in need waits for memory that others are asked for, microseconds.
pub const NEED_WAIT_US: u64 = 3_000_000;
/// The longest that a program of a guest waits for that, and for the end of a change of size, microseconds.
pub const PROGRAM_WAIT_US: u64 = 20_000_000;
/// How many programs of a guest may wait for the end of a change of size.
pub const WAITING_MAX: usize = 8;
/// How often the pool is asked again meanwhile, microseconds.
pub const NEED_RETRY_US: u64 = 20_000;
/// How long the agent may take to say how the guest is, microseconds.
pub const REPORT_US: u64 = 1_000_000;
/// How long the agent may take to say that new memory is online, microseconds.
pub const ARRIVE_US: u64 = 2_000_000;
/// How long a guest that kept what it was to give is not asked again by the memory manager, microseconds.
pub const KEPT_US: u64 = 60_000_000;
/// How many wishes of a guest are heard in a second.
pub const NEEDS_MAX: u32 = 16;
/// How many messages of an agent are heard in a second.
pub const MESSAGES_MAX: u32 = 200;
