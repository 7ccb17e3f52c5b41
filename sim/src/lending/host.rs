//! A virtual host: its memory, what it keeps for others, and its devices.

use std::collections::{BTreeMap, BTreeSet};

use spillway_lending::{CopyLocation, DeviceId, HostId, LoanId, Machine, PoolIdentity, Reading};

/// Bytes of a slab here.
pub(super) const SLAB_BYTES: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Host {
    pub id: HostId,
    pub rack: String,
    pub total_bytes: u64,
    /// What its own programs want.
    pub demand_bytes: u64,
    /// None while it is down.
    pub machine: Option<Machine>,
    /// Which start of its daemon.
    pub boot: u32,
    pub paused_until_us: u64,
    pub cut_until_us: u64,
    /// Until when what happens to it may be put down to a fault.
    pub excused_until_us: u64,
    /// Its driver takes long for everything.
    pub is_slow: bool,
    /// The earliest look at the clock that is scheduled.
    pub wake_us: u64,
    /// What it keeps for others, as far as their requests reach it.
    pub pools: BTreeMap<LoanId, Pool>,
    /// Slabs that are being set aside or freed.
    pub changing_slabs: u64,
    /// Its memory, slab by slab: whose pool has it.
    pub blocks: Vec<Option<PoolIdentity>>,
    /// Pools that a fault has destroyed.
    pub gone: BTreeSet<PoolIdentity>,
    pub devices: BTreeMap<DeviceId, Device>,
    /// What the local file has of each slab.
    pub file: BTreeMap<(DeviceId, u32), u64>,
    /// What it told the registry last.
    pub spare_bytes: u64,
    /// Since when each device is being gathered, and each loan asked for.
    pub gathering: BTreeMap<DeviceId, u64>,
    pub asked: BTreeMap<u64, u64>,
    /// By when it has back what it recalls.
    pub recalls: BTreeMap<LoanId, u64>,
}

/// Memory set aside for a loan.
#[derive(Debug)]
pub(super) struct Pool {
    pub identity: PoolIdentity,
    pub blocks: Vec<usize>,
    /// What each slab has: of which of the borrower's slabs, in which version.
    pub data: BTreeMap<u32, Content>,
}

/// What was written to a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub device: DeviceId,
    pub slab: u32,
    pub version: u64,
}

/// A device as the data plane has it.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub grants: BTreeMap<LoanId, Grant>,
    pub slabs: Vec<Slab>,
    pub is_attached: bool,
}

/// A loan as the data plane has it.
#[derive(Debug)]
pub(super) struct Grant {
    pub lender: usize,
    pub identity: PoolIdentity,
    pub blocks: Vec<usize>,
    /// A fault has taken it, and that has been counted.
    pub is_hit: bool,
}

/// A slab as the data plane has it.
#[derive(Debug, Default)]
pub(super) struct Slab {
    /// Writes that were acknowledged; 0 is a slab with nothing in it.
    pub version: u64,
    pub copies: [Option<CopyLocation>; 2],
    /// Copies that faults have taken since it last had all, and how many it had then.
    pub hits: u32,
    pub full: u32,
}

impl Host {
    pub const fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub const fn is_reachable(&self, now_us: u64) -> bool {
        self.is_up() && self.paused_until_us <= now_us && self.cut_until_us <= now_us
    }

    /// Slabs that its pools have, and those that are being set aside or freed.
    pub fn lent_slabs(&self) -> u64 {
        let pools: usize = self.pools.values().map(|pool| pool.blocks.len()).sum();
        pools as u64 + self.changing_slabs
    }

    fn written_bytes(&self) -> u64 {
        let written: usize = self.pools.values().map(|pool| pool.data.len()).sum();
        written as u64 * SLAB_BYTES
    }

    /// What swap would hold of it: what its programs want beyond seven tenths, as far as devices have room.
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

    /// The memory that its own programs have at the moment.
    pub fn own_bytes(&self) -> u64 {
        let swapped: u64 = self.attached().map(|(_, device)| Self::in_use_bytes(device)).sum();
        self.demand_bytes.saturating_sub(swapped).min(self.total_bytes)
    }

    /// What the monitor reads.
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

    /// Sets slabs aside.
    pub fn make_pool(&mut self, loan: LoanId, identity: PoolIdentity, slabs: u32) {
        let free = self.blocks.iter().enumerate().filter(|(_, owner)| owner.is_none());
        let blocks: Vec<usize> = free.map(|(block, _)| block).take(slabs as usize).collect();
        for block in &blocks {
            self.blocks[*block] = Some(identity);
        }
        self.pools.insert(loan, Pool { identity, blocks, data: BTreeMap::new() });
    }

    /// Ends a pool; its slabs.
    pub fn end_pool(&mut self, loan: &LoanId) -> u64 {
        let Some(pool) = self.pools.remove(loan) else { return 0 };
        for block in &pool.blocks {
            self.blocks[*block] = None;
        }
        pool.blocks.len() as u64
    }
}
