//! The tables of clients and pools, in memory that can be kept.
//!
//! A record is valid from the moment its id is written, which is last, until the id is cleared,
//! which is first. So a process that takes over the memory finds only complete records.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use spillway_tiers::sync::{AtomicU64, Ordering};
use spillway_tiers::{Region, Table, Zeroed};

use crate::client::ClientSlot;
use crate::config::{Config, Dedup};
use crate::error::Error;
use crate::index::Index;
use crate::pool::{HANDLES_MAX, Handle, Pools};
use crate::position::{SHARDS, shards_used};
use crate::slot::CLIENTS_MAX;

/// First word of the tables.
const MAGIC: u64 = u64::from_le_bytes(*b"Spillway");
/// The layout of all that is kept. Raise it with any change to the index's leaves, slots or heads,
/// cells and maps of long values, or to the records of clients and pools, and list it in CHANGELOG.md.
const LAYOUT: u64 = 2;

/// Kept state of the whole store.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Head {
    /// [`MAGIC`], written last: without it there is no store yet.
    magic: AtomicU64,
    layout: AtomicU64,
    capacity_bytes: AtomicU64,
    seed: AtomicU64,
    /// The random identity of the store.
    instance: AtomicU64,
    /// The serial number of the last created client or pool.
    serial: AtomicU64,
    /// 1 if the store shares equal values or did so once: it may be opened again to share no more.
    has_shared: AtomicU64,
}

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for Head {}

/// The kept memory beside the arena's.
#[derive(Debug)]
pub(crate) struct Tables {
    head: Table<Head>,
    tables: Arc<Region>,
    index: Arc<Region>,
}

/// The tables, and what lies in them.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) tables: Tables,
    pub(crate) clients: Table<ClientSlot>,
    pub(crate) pools: Pools,
}

impl Tables {
    /// Creates the empty tables of a new store.
    pub(crate) fn open(config: &Config, seed: u64, instance: u64) -> Result<Opened, Error> {
        let index = Region::reserve(index_bytes(config), config.backing)?;
        let made = Self::within(Region::reserve(table_bytes(), config.backing)?, index)?;
        let head = &made.tables.head[0];
        head.layout.store(LAYOUT, Ordering::Relaxed);
        head.capacity_bytes.store(config.capacity_bytes, Ordering::Relaxed);
        head.seed.store(seed, Ordering::Relaxed);
        head.instance.store(instance, Ordering::Relaxed);
        made.tables.note_sharing(config);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(made)
    }

    /// Adopts tables and index that another process kept.
    pub(crate) fn take_over(
        config: &Config,
        tables: OwnedFd,
        index: OwnedFd,
    ) -> Result<Opened, Error> {
        let wrong = |_| Error::Damaged("a descriptor is not of a store of this capacity");
        let tables = Region::adopt(tables, table_bytes()).map_err(wrong)?;
        let index = Region::adopt(index, index_bytes(config)).map_err(wrong)?;
        let made = Self::within(tables, index)?;
        let head = &made.tables.head[0];
        if head.magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::Damaged("the tables are not a store's"));
        }
        if head.layout.load(Ordering::Relaxed) != LAYOUT {
            return Err(Error::Config("the kept memory has the layout of another version"));
        }
        if head.capacity_bytes.load(Ordering::Relaxed) != config.capacity_bytes {
            return Err(Error::Config("the kept memory is of a store of another capacity"));
        }
        made.tables.note_sharing(config);
        Ok(made)
    }

    fn within(tables: Region, index: Region) -> Result<Opened, Error> {
        let (tables, index) = (Arc::new(tables), Arc::new(index));
        let mut next = 0;
        let head = Table::within(&tables, &mut next, 1)?;
        let clients = Table::within(&tables, &mut next, CLIENTS_MAX)?;
        let handles = Table::within(&tables, &mut next, HANDLES_MAX)?;
        Ok(Opened { tables: Self { head, tables, index }, clients, pools: Pools { handles } })
    }

    fn note_sharing(&self, config: &Config) {
        if config.dedup != Dedup::Off {
            self.head[0].has_shared.store(1, Ordering::Relaxed);
        }
    }

    /// Whether values of the store may share memory, from now or from before.
    pub(crate) fn has_shared(&self) -> bool {
        self.head[0].has_shared.load(Ordering::Relaxed) != 0
    }

    /// The index, empty.
    pub(crate) fn index(&self, config: &Config) -> Vec<Index> {
        Index::open(&self.index, SHARDS, shard_bytes(config), self.seed())
    }

    pub(crate) fn seed(&self) -> u64 {
        self.head[0].seed.load(Ordering::Relaxed)
    }

    pub(crate) fn instance(&self) -> u64 {
        self.head[0].instance.load(Ordering::Relaxed)
    }

    /// The serial number that was given last.
    pub(crate) fn serial(&self) -> u64 {
        self.head[0].serial.load(Ordering::Relaxed)
    }

    /// A serial number that was never given before. Callers hold the lock of the control plane.
    pub(crate) fn next_serial(&self) -> u64 {
        self.head[0].serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Index and tables, where they are kept.
    pub(crate) fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.index.descriptor()?, self.tables.descriptor()?])
    }
}

fn table_bytes() -> usize {
    Table::<Head>::bytes_for(1)
        + Table::<ClientSlot>::bytes_for(CLIENTS_MAX)
        + Table::<Handle>::bytes_for(HANDLES_MAX)
}

fn index_bytes(config: &Config) -> usize {
    Index::bytes_for(SHARDS, shard_bytes(config))
}

/// A fair share of address space for each shard, of both leaves and slots, which together are more
/// than its part of memory; only what is used takes memory.
fn shard_bytes(config: &Config) -> usize {
    (config.capacity_bytes as usize / shards_used(config.capacity_bytes)).max(2 << 20)
}
