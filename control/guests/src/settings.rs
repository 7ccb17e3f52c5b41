//! Limits and timeouts of a guest.

use crate::agent::Profile;

/// The settings of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a section: sizes change by multiples of it. A multiple of the devices' block size.
    pub section_bytes: u64,
    /// The guest's smallest size, boot memory included, bytes.
    pub least_bytes: u64,
    /// The guest's largest size, boot memory included, bytes.
    pub most_bytes: u64,
    /// Memory that the agent keeps available in the guest, bytes.
    pub reserve_bytes: u64,
    /// How the guest uses new memory.
    pub profile: Profile,
    /// Whether the guest's own requests and the memory manager change its size; otherwise only the operator
    /// does.
    pub auto: bool,
    /// How long the guest may take for a change of size, microseconds.
    pub resize_timeout_us: u64,
    /// How long the agent may take to set blocks offline before the device is asked anyway, microseconds.
    pub offline_timeout_us: u64,
    /// Interval of the agent's status, milliseconds.
    pub interval_ms: u32,
}

impl Settings {
    /// The largest size of a guest with `boot_bytes` of boot memory, bytes. If all new memory is movable, the kernel's
    /// own structures must fit in the boot memory: beyond 16 times that, guests failed or panicked in tests.
    pub fn ceiling_bytes(&self, boot_bytes: u64) -> u64 {
        match self.profile {
            Profile::ReturnsAll => self.most_bytes.min(boot_bytes.saturating_mul(GROWTH_MAX)),
            Profile::GrowsFar => self.most_bytes,
        }
    }
}

/// Limit of the size of a guest with profile [`Profile::ReturnsAll`], as a multiple of its boot memory. Page
/// descriptors take 1/64 of all memory: at 16 times, a quarter of the boot memory. The rest of the kernel has three
/// quarters.
pub const GROWTH_MAX: u64 = 16;
/// A page's descriptor takes 64 of its 4096 bytes.
pub const DESCRIPTORS_PART: u64 = 64;
/// Memory that must stay free in the kernel's zones in addition to the descriptors of new pages, or as much again as
/// those take, if that is less, bytes.
pub const KERNEL_FREE_MIN_BYTES: u64 = 8 << 20;
/// How often the driver reads the devices' sizes while the guest changes, microseconds.
pub const POLL_US: u64 = 2_000;
/// The same at rest, microseconds.
pub const REST_POLL_US: u64 = 1_000_000;
/// How often the request is repeated while the guest does not reach the size: virtio-mem's driver retries at
/// growing intervals of up to 39 s, but retries at once on a new request.
pub const NUDGE_US: u64 = 900_000;
/// How long a device may take to come to rest after a change was stopped, microseconds.
pub const FREEZE_US: u64 = 2_000_000;
/// How long a guest in need waits for memory of others, microseconds.
pub const NEED_WAIT_US: u64 = 3_000_000;
/// Longest time for which a guest's program waits for that, and for the end of a change of size,
/// microseconds.
pub const PROGRAM_WAIT_US: u64 = 20_000_000;
/// How many programs of a guest may wait for the end of a change of size.
pub const WAITING_MAX: usize = 8;
/// How often the pool is asked again meanwhile, microseconds.
pub const NEED_RETRY_US: u64 = 20_000;
/// How long the agent may take to send a status, microseconds.
pub const REPORT_US: u64 = 1_000_000;
/// How long the agent may take to report new memory online, microseconds.
pub const ARRIVE_US: u64 = 2_000_000;
/// How long the memory manager does not ask a guest again that kept its memory, microseconds.
pub const KEPT_US: u64 = 60_000_000;
/// Most requests of a guest processed per second.
pub const NEEDS_MAX: u32 = 16;
/// Most messages of an agent processed per second.
pub const MESSAGES_MAX: u32 = 200;
