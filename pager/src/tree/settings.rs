//! The settings of a run, as they lie in the shared page.

/// Longest path of the disk tier, bytes.
pub const PATH_MAX: usize = 512;
/// Longest address of a blade, bytes.
pub const ADDRESS_MAX: usize = 1024;
/// Longest secret of a host, bytes.
pub const SECRET_MAX: usize = 256;

/// Which page leaves when memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Replacement {
    /// Choose between the two by the measured time of a fetch.
    Auto = 0,
    /// A pointer over the resident pages, in the order of their addresses.
    RoundRobin = 1,
    /// Second chance, with a victim pool in place of accessed bits.
    Clock = 2,
}

/// When a victim leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Eviction {
    /// Inside the fault that needs its frame.
    OnDemand = 0,
    /// Ahead of need, by a task of its own.
    PreEvict = 1,
    /// Choose between the two by trying them in turns.
    Auto = 2,
}

/// Who handles a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Faults {
    /// A handler per core; system calls may touch far pages.
    Thread = 0,
    /// The faulting thread itself, in a SIGBUS handler.
    Signal = 1,
}

/// A text in the shared page.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text<const MAX: usize> {
    len: u32,
    bytes: [u8; MAX],
}

impl<const MAX: usize> Text<MAX> {
    /// No text.
    pub const NONE: Self = Self { len: 0, bytes: [0; MAX] };

    /// `None` when it is too long.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut made = Self::NONE;
        made.bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        made.len = text.len() as u32;
        Some(made)
    }

    /// The text, unless there is none.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        let bytes = self.bytes.get(..self.len as usize)?;
        std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }
}

/// How a blade is reached, and the run's pool on it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BladeAddress {
    /// The identity of the pool.
    pub pool_identity: [u8; 16],
    /// URL of a blade, or directory of a mirror; none is no blade.
    pub address: Text<ADDRESS_MAX>,
    /// The secret by which this host authenticates.
    pub secret: Text<SECRET_MAX>,
}

impl BladeAddress {
    /// No blade.
    pub const NONE: Self = Self { pool_identity: [0; 16], address: Text::NONE, secret: Text::NONE };
}

/// Where pages go that leave the host.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BladeSettings {
    /// The blade.
    pub blade: BladeAddress,
    /// The mirror, which gets everything that the blade gets.
    pub mirror: BladeAddress,
    /// How long a page waits for the blade, and then for the mirror, ns.
    pub timeout_ns: u64,
    /// How long a page waits that only a blade or mirror may have which does not answer, ns.
    pub loss_timeout_ns: u64,
    /// 1 when pages are encrypted before they leave.
    pub encrypt: u32,
    /// 1 if the key is that of a sharing domain.
    pub share: u32,
    /// The key of this run, or of the domain.
    pub key: [u8; spillway_tiers::blade::KEY_BYTES],
}

impl BladeSettings {
    /// No blade.
    pub const NONE: Self = Self {
        blade: BladeAddress::NONE,
        mirror: BladeAddress::NONE,
        timeout_ns: 0,
        loss_timeout_ns: 0,
        encrypt: 1,
        share: 0,
        key: [0; spillway_tiers::blade::KEY_BYTES],
    };
}

impl std::fmt::Debug for BladeSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
        f.debug_struct("BladeSettings")
            .field("timeout_ns", &self.timeout_ns)
            .finish_non_exhaustive()
    }
}

/// The settings of a run. Plain data; written before the program starts.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Settings {
    /// Most managed pages that may be resident in the whole tree at the start; see [`Tree::budget_pages`](super::Tree::budget_pages).
    pub local_pages: u64,
    /// Most bytes that the store's memory may take in the whole tree.
    pub store_bytes: u64,
    /// Delay that the emulated link adds to each transfer, ns; 0 is no link.
    pub link_delay_ns: u64,
    /// Shortest time that a read or write of the disk tier takes, ns; 0 is none but its own.
    pub disk_delay_ns: u64,
    /// What is added to a limit on address space (RLIMIT_AS) that the program sets itself, bytes: what the
    /// pager reserves for itself. 0 when the run began under such a limit.
    pub address_space_bytes: u64,
    /// [`Replacement`] as a number.
    pub replacement: u32,
    /// [`Eviction`] as a number.
    pub eviction: u32,
    /// [`Faults`] as a number.
    pub faults: u32,
    /// 1 when pages are fetched ahead of sequential and strided walks.
    pub prefetch: u32,
    /// 1 when the store compresses.
    pub compress: u32,
    /// 1 if requests to the store are recorded in [`Tree::records`](super::Tree::records).
    pub record: u32,
    /// Length of `disk_path`; 0 is no disk tier.
    pub disk_path_len: u32,
    /// Directory of the disk tier, bytes as the kernel takes them.
    pub disk_path: [u8; PATH_MAX],
    /// The process that watches over the run.
    pub supervisor_pid: u32,
    /// When it began, as `/proc/PID/stat` has it: with the number it names one process for ever.
    pub supervisor_start_ticks: u64,
    /// The blade.
    pub blade: BladeSettings,
}

/// Address space that a pager with such a store reserves in its program, bytes: frames in three sizes and
/// their tables, the victim pool, and what the allocator takes at once.
#[must_use]
pub const fn reserved_bytes(store_bytes: u64) -> u64 {
    RESERVED_BYTES_MIN.saturating_add(store_bytes.saturating_add(store_bytes / 100 * 225))
}

/// What the pager reserves apart from the store.
const RESERVED_BYTES_MIN: u64 = 9 << 28;
