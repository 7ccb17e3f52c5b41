//! A virtual host: its memory, the pools that it keeps for others, and its devices.

use std::collections::{BTreeMap, BTreeSet};

use spillway_lending::{CopyLocation, DeviceId, HostId, LoanId, Machine, PoolIdentity, Reading};

use super::clock::Clock;

/// Bytes of a slab here.
pub(super) const SLAB_BYTES: u64 = 1 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Host {
    pub id: HostId,
    pub rack: String,
    pub total_bytes: u64,
    /// Memory that its own programs want.
    pub demand_bytes: u64,
    /// None while it is down.
    pub machine: Option<Machine>,
    /// The number of its daemon's start.
    pub boot: u32,
    pub paused_until_us: u64,
    /// Until when nothing that it sends arrives, and nothing reaches it.
    pub mute_until_us: u64,
    pub deaf_until_us: u64,
    pub clock: Clock,
    /// Whether its driver is slow.
    pub is_slow: bool,
    /// The earliest scheduled wake-up.
    pub wake_us: u64,
    /// Pools that it keeps for others, and that their requests reach.
    pub pools: BTreeMap<LoanId, Pool>,
    /// Slabs that are being reserved or freed.
    pub changing_slabs: u64,
    /// The owner of each slab of its memory.
    pub blocks: Vec<Option<PoolIdentity>>,
    /// Pools that a fault has destroyed.
    pub gone: BTreeSet<PoolIdentity>,
    pub devices: BTreeMap<DeviceId, Device>,
    /// The version of each slab in the local file.
    pub file: BTreeMap<(DeviceId, u32), u64>,
    /// Whether the local file's disk has failed: it gives and takes nothing.
    pub is_file_lost: bool,
    /// The spare memory that it last reported to the registry.
    pub spare_bytes: u64,
    /// Since when each device is being gathered, and each loan requested.
    pub gathering: BTreeMap<DeviceId, u64>,
    pub asked: BTreeMap<u64, u64>,
    /// The deadlines of its recalls.
    pub recalls: BTreeMap<LoanId, u64>,
    /// The last reading of its memory.
    pub reading: Reading,
    /// Where machine and data plane differ about a copy: what each has, and since when.
    pub differences: BTreeMap<(DeviceId, u32, usize), Difference>,
}

/// What machine and data plane have as the place of a copy, and since when, µs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub machine: Option<CopyLocation>,
    pub plane: Option<CopyLocation>,
    pub since_us: u64,
}

/// Memory reserved for a loan.
#[derive(Debug)]
pub(super) struct Pool {
    pub identity: PoolIdentity,
    pub blocks: Vec<usize>,
    /// The content of each slab: which of the borrower's slabs, and its version.
    pub data: BTreeMap<u32, Content>,
}

/// The content of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub device: DeviceId,
    pub slab: u32,
    pub version: u64,
}

/// The data plane's state of a device.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub grants: BTreeMap<LoanId, Grant>,
    pub slabs: Vec<Slab>,
    pub is_attached: bool,
    /// The operator wants it returned.
    pub is_leaving: bool,
}

/// The data plane's state of a loan.
#[derive(Debug)]
pub(super) struct Grant {
    pub lender: usize,
    pub identity: PoolIdentity,
    pub blocks: Vec<usize>,
    /// Whether a fault has taken it, and that was counted.
    pub is_hit: bool,
}

/// The data plane's state of a slab.
#[derive(Debug, Default)]
pub(super) struct Slab {
    /// The version that was last acknowledged; 0 is an empty slab.
    pub version: u64,
    pub copies: [Option<CopyLocation>; 2],
    /// The places of copies that were given up.
    pub lost: [Option<CopyLocation>; 2],
    /// Calm seconds since it has fewer copies than it should have.
    pub short_s: u64,
    /// Copies that faults have taken since it last had all copies, and their number then.
    pub hits: u32,
    pub full: u32,
    /// Whether its copy in the local file is counted in `hits`.
    pub is_file_hit: bool,
}

impl Host {
    pub const fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    /// Whether messages reach it.
    pub const fn is_reachable(&self, now_us: u64) -> bool {
        self.is_up() && self.paused_until_us <= now_us && self.deaf_until_us <= now_us
    }

    /// Whether requests reach it, and its answers arrive.
    pub const fn answers(&self, now_us: u64) -> bool {
        self.is_reachable(now_us) && !self.is_cut(now_us)
    }

    /// Whether its network fails, one way or both.
    pub const fn is_cut(&self, now_us: u64) -> bool {
        self.mute_until_us > now_us || self.deaf_until_us > now_us
    }

    /// Whether a local file of so many slabs takes one more.
    pub fn has_file_room(&self, file_slabs: u64) -> bool {
        let slabs = self.devices.values().flat_map(|device| &device.slabs);
        let used = slabs.filter(|slab| slab.copies.contains(&Some(CopyLocation::File))).count();
        !self.is_file_lost && (used as u64) < file_slabs
    }

    /// Slabs of its pools, and slabs that are being reserved or freed.
    pub fn lent_slabs(&self) -> u64 {
        let pools: usize = self.pools.values().map(|pool| pool.blocks.len()).sum();
        pools as u64 + self.changing_slabs
    }

    fn written_bytes(&self) -> u64 {
        let written: usize = self.pools.values().map(|pool| pool.data.len()).sum();
        written as u64 * SLAB_BYTES
    }

    /// Slabs in swap: its programs' demand beyond seven tenths of the memory, as far as devices have room.
    pub fn swapped_slabs(&self) -> u64 {
        let room: usize = self.attached().map(|(_, device)| device.slabs.len()).sum();
        let beyond = self.demand_bytes.saturating_sub(self.total_bytes / 10 * 7);
        beyond.div_ceil(SLAB_BYTES).min(room as u64)
    }

    fn attached(&self) -> impl Iterator<Item = (&DeviceId, &Device)> {
        self.devices.iter().filter(|(_, device)| device.is_attached)
    }

    fn in_use_bytes(device: &Device) -> u64 {
        device.slabs.iter().filter(|slab| slab.version != 0).count() as u64 * SLAB_BYTES
    }

    /// Memory that its own programs have at the moment.
    pub fn own_bytes(&self) -> u64 {
        let swapped: u64 = self.attached().map(|(_, device)| Self::in_use_bytes(device)).sum();
        self.demand_bytes.saturating_sub(swapped).min(self.total_bytes)
    }

    /// The monitor's reading.
    pub fn reading(&self) -> Reading {
        let lent_used_bytes = self.written_bytes();
        Reading {
            total_bytes: self.total_bytes,
            used_bytes: (self.own_bytes() + lent_used_bytes).min(self.total_bytes),
            lent_used_bytes,
            devices: self
                .attached()
                .map(|(id, device)| (*id, Self::in_use_bytes(device)))
                .collect(),
        }
    }

    /// Reserves slabs.
    pub fn make_pool(&mut self, loan: LoanId, identity: PoolIdentity, slabs: u32) {
        let free = self.blocks.iter().enumerate().filter(|(_, owner)| owner.is_none());
        let blocks: Vec<usize> = free.map(|(block, _)| block).take(slabs as usize).collect();
        for block in &blocks {
            self.blocks[*block] = Some(identity);
        }
        self.pools.insert(loan, Pool { identity, blocks, data: BTreeMap::new() });
    }

    /// Ends a pool. Returns its slabs.
    pub fn end_pool(&mut self, loan: &LoanId) -> u64 {
        let Some(pool) = self.pools.remove(loan) else { return 0 };
        for block in &pool.blocks {
            self.blocks[*block] = None;
        }
        pool.blocks.len() as u64
    }
}
