//! Opens a store in memory that another process kept.
//!
//! The slots of the index and the tables of clients and pools are authoritative. A scan of them
//! rebuilds everything else: buckets, free lists, reference counts, cells, lists, counters. Memory
//! that no slot names is zeroed before reuse. Everything read is checked first: invalid memory
//! gives an error, not a wild read.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use spillway_tiers::sync::Ordering;
use spillway_tiers::{Arena, Backing, Claims};
use spillway_types::{ClientId, Key, Sharing};

use crate::client::{client_number, client_serial};
use crate::config::{Config, Dedup};
use crate::error::Error;
use crate::file_tier;
use crate::index::restore::Fate;
use crate::index::{LEAF_SHIFT, LEAF_SLOTS, LeafKey, ROOT_CHUNK};
use crate::list::List;
use crate::pool::{POOLS_MAX, Pool, PoolShard, serial_at};
use crate::position::{HandlePosition, SHARDS};
use crate::slot::{PREPAID, Slot, ValueLocation};
use crate::store::Store;
use crate::tables::Tables;

/// What another process kept of a store.
#[derive(Debug)]
pub struct Kept {
    /// The descriptors of [`Store::kept_descriptors`], in that order.
    pub memory: [OwnedFd; 3],
    /// Those of [`Store::kept_disk_descriptors`], where there were some.
    pub disk: Option<[OwnedFd; 2]>,
}

impl From<[OwnedFd; 3]> for Kept {
    fn from(memory: [OwnedFd; 3]) -> Self {
        Self { memory, disk: None }
    }
}

/// The scan's data of a pool.
#[derive(Debug)]
struct Known {
    fate: Fate,
    reserve: u16,
    members: Vec<u16>,
}

/// Names of a store's memory, in the order of [`Store::kept_descriptors`].
const NAMES: [&str; 3] = ["frames", "index", "tables"];
/// Names of a store's disk, in the order of [`Store::kept_disk_descriptors`].
const DISK_NAMES: [&str; 2] = ["disk", "sums"];

impl Store {
    /// The memory of a store with [`Backing::Memfd`], for [`Store::reopen`]: names and descriptors
    /// of three memfds, in the order in which that wants them. `None` for other stores.
    ///
    /// The descriptors stay the same while the store is open. A process that holds duplicates
    /// preserves the store's persistent pools beyond the death of this process.
    pub fn kept_descriptors(&self) -> Option<[(&'static str, BorrowedFd<'_>); 3]> {
        debug_assert_eq!(self.config.backing == Backing::Memfd, self.arena.descriptor().is_some());
        let [index, tables] = self.tables.descriptors()?;
        let [frames_name, index_name, tables_name] = NAMES;
        Some([(frames_name, self.arena.descriptor()?), (index_name, index), (tables_name, tables)])
    }

    /// The disk of a store with [`Backing::Memfd`], to be kept with its memory: names and
    /// descriptors of the file of pages and of the memfd with their checksums. `None` for a store
    /// without a disk. The descriptors stay the same, too.
    pub fn kept_disk_descriptors(&self) -> Option<[(&'static str, BorrowedFd<'_>); 2]> {
        let [file, sums] = self.kept_disk()?.descriptors()?;
        let [file_name, sums_name] = DISK_NAMES;
        Some([(file_name, file), (sums_name, sums)])
    }

    /// Opens a store in the memory of another, whose process may have ended in any way and at any
    /// instruction. `config` has its capacity. No other process may use the memory. A kept disk
    /// continues with at most its former size, whatever `config` says. If there was none and `config`
    /// has one, it starts empty.
    ///
    /// Clients, pools with their ids and numbers, reservations and the values of persistent pools
    /// are as they were: each answered put, flush, and creation or destruction of a pool has
    /// happened. Of an operation in progress, all or nothing of each value has. Ephemeral values
    /// are gone. Counters begin at zero, no client is frozen, and permissions to join shared pools
    /// must be given again ([`Store::authorise`]); members are members still.
    ///
    /// # Errors
    /// [`Error::Config`] when `config` does not fit the memory; [`Error::Damaged`];
    /// [`Error::Io`].
    pub fn reopen(config: Config, kept: impl Into<Kept>) -> Result<Self, Error> {
        let Kept { memory, disk } = kept.into();
        config.check()?;
        if config.backing != Backing::Memfd {
            return Err(Error::Config("only a store in memfds can be reopened"));
        }
        let [frames, index, tables] = memory;
        let opened = Tables::take_over(&config, tables, index)?;
        let shares = config.dedup != Dedup::Off;
        let arena =
            Arena::take_over(config.capacity_bytes, frames, shares).map_err(|error| match error
                .kind()
            {
                std::io::ErrorKind::InvalidData => Error::Damaged("the frames are not a store's"),
                _ => error.into(),
            })?;
        let files = file_tier::restore(&config, disk)?;
        let mut store = Self::with(config, arena, files, opened)?;
        store.restore_clients()?;
        let known = store.restore_pools()?;
        store.restore_values(&known)?;
        store.restore_reserves()?;
        store.restore_lists();
        Ok(store)
    }

    fn restore_clients(&mut self) -> Result<(), Error> {
        let mut control = self.control.lock();
        for (number, client) in self.clients.iter().enumerate() {
            let id = ClientId(client.id.load(Ordering::Relaxed));
            if id.0 == 0 {
                continue;
            }
            if number == 0
                || client_number(id) != number
                || client_serial(id) > self.tables.serial()
            {
                return Err(Error::Damaged("a client's record makes no sense"));
            }
            client.start(control.domain_of(number, client.config())?);
            if !self.client_shards.restore((number + 1) * SHARDS, self.budget()) {
                return Err(Error::TableFull);
            }
            self.clients_high.store(number as u64, Ordering::Relaxed);
        }
        for number in self.client_numbers() {
            (0..SHARDS).for_each(|shard| self.client_shard(number, shard).clear());
        }
        Ok(())
    }

    /// Rebuilds the list of pools from the handles.
    fn restore_pools(&mut self) -> Result<Vec<Option<Known>>, Error> {
        const BAD: Error = Error::Damaged("a pool's record makes no sense");
        let mut pools = BTreeMap::<u16, Pool>::new();
        let mut known: Vec<Option<Known>> = (0..POOLS_MAX).map(|_| None).collect();
        for (place, handle) in self.pools.handles.iter().enumerate() {
            let Some((id, access)) = handle.record() else { continue };
            let serial = serial_at(id, place).ok_or(BAD)?;
            let number = usize::from(access.pool);
            let client = self.clients.get(usize::from(access.client)).ok_or(BAD)?;
            let client = ClientId(client.id.load(Ordering::Relaxed));
            if serial > self.tables.serial() || !(1..POOLS_MAX).contains(&number) || client.0 == 0 {
                return Err(BAD);
            }
            let (spec, reserved_pages) = handle.spec(access);
            let pool = pools.entry(access.pool).or_insert_with(|| Pool {
                number: access.pool,
                spec,
                members: Vec::new(),
                reserve: access.reserve,
                reserved_pages,
            });
            let same = pool.spec == spec && pool.reserve == access.reserve;
            let alone = pool.members.is_empty() || spec.sharing != Sharing::Private;
            let reservable = spec.sharing == Sharing::Private && !access.ephemeral;
            if !same || !alone || access.is_reserved() != (reserved_pages != 0) {
                return Err(BAD);
            }
            if access.is_reserved() && !reservable {
                return Err(BAD);
            }
            pool.members.push((client, id));
            let fate = match access {
                access if access.ephemeral => Fate::Drop,
                access if access.is_reserved() => Fate::Keep,
                _ => Fate::Stay,
            };
            let members = Vec::new();
            known[number].get_or_insert(Known { fate, reserve: access.reserve, members });
        }
        let mut control = self.control.lock();
        for (number, mut pool) in pools {
            // The serial number in an id tells who came first.
            pool.members.sort_unstable_by_key(|member| member.1);
            let same_name = |other: &Pool| other.spec.sharing == pool.spec.sharing;
            if pool.spec.sharing != Sharing::Private && control.pools.iter().any(same_name) {
                return Err(BAD);
            }
            if let Some(known) = &mut known[usize::from(number)] {
                known.members = pool.members.iter().map(|m| client_number(m.0) as u16).collect();
            }
            let counters = PoolShard::count(usize::from(number) + 1);
            if !self.pool_shards.restore(counters, self.budget()) {
                return Err(Error::TableFull);
            }
            self.lifetimes.set(number, pool.spec.lifetime);
            control.last_number = number;
            control.pools.push(pool);
        }
        drop(control);
        Ok(known)
    }

    /// Claims the memory of all values, and frees the rest.
    fn restore_values(&mut self, known: &[Option<Known>]) -> Result<(), Error> {
        let mut claims = Claims::new(&self.arena, self.tables.has_shared());
        for shard in 0..SHARDS {
            let fate = |key: LeafKey| {
                let misplaced = HandlePosition::of_leaf(key, 0, self.seed).shard != shard;
                if misplaced || key.chunk > u32::MAX >> LEAF_SHIFT && key.chunk != ROOT_CHUNK {
                    return Err(Error::Damaged("a leaf's name makes no sense"));
                }
                let pool = known.get(usize::from(key.pool)).and_then(Option::as_ref);
                let fate = pool.map_or(Fate::Drop, |known| known.fate);
                // A root has no slots to keep it for.
                let root = key.chunk == ROOT_CHUNK && fate == Fate::Keep;
                Ok(if root { Fate::Stay } else { fate })
            };
            let keep = |key: LeafKey, slot: Slot| {
                let pool = known[usize::from(key.pool)].as_ref();
                let pool = pool.ok_or(Error::Damaged("a value of no pool"))?;
                self.restore_slot(key, shard, slot, pool, &mut claims)
            };
            self.shards[shard].lock().rebuild(self.budget(), fate, keep)?;
        }
        self.cells.settle(&self.arena, &claims);
        self.arena.settle();
        if let Some(disk) = self.kept_disk() {
            disk.settle().map_err(Error::Disk)?;
        }
        self.restore_roots()
    }

    /// Claims the memory of a value, and counts it. Returns the slot, which may have another owner:
    /// a client that has left the pool passed on its values.
    fn restore_slot(
        &self,
        key: LeafKey,
        shard: usize,
        slot: Slot,
        pool: &Known,
        claims: &mut Claims,
    ) -> Result<Slot, Error> {
        const BAD: Error = Error::Damaged("a value's place makes no sense");
        const NO_DISK: Error = Error::Damaged("pages lie on a disk, which was not kept");
        let reserved = pool.reserve != 0;
        let owner = match slot.owner() {
            owner if reserved && owner == PREPAID || pool.members.contains(&owner) => owner,
            owner if !reserved && owner != PREPAID => pool.members[0],
            _ => return Err(BAD),
        };
        if reserved && owner != PREPAID {
            return Err(BAD);
        }
        let mut cell = |cell, length| {
            let claimed = self.cells.claim(&self.arena, claims, cell, usize::from(length));
            if claimed { Ok(()) } else { Err(BAD) }
        };
        match slot.place() {
            ValueLocation::Raw { frame, .. } => {
                let references = self.arena.claim(frame, pool.reserve).ok_or(BAD)?;
                if reserved && references > 1 {
                    return Err(BAD);
                }
            }
            ValueLocation::Uniform { .. } => {
                self.uniform_pages.fetch_add(1, Ordering::Relaxed);
            }
            ValueLocation::Small { cell: at, length } if !reserved => cell(at, length)?,
            ValueLocation::Packed { cell: at, length } if !reserved => {
                cell(at, length)?;
                self.packed_pages.fetch_add(1, Ordering::Relaxed);
            }
            ValueLocation::Large { cell } if !reserved => {
                self.large().claim(claims, cell).ok_or(BAD)?;
            }
            ValueLocation::Disk { file, slot } if !reserved => {
                let disk = self.kept_disk().ok_or(NO_DISK)?;
                if !disk.claim(file, slot, self.budget()) {
                    return Err(BAD);
                }
            }
            _ => return Err(BAD),
        }
        let slot = slot.with_owner(owner).with_listed(false);
        let pages = self.pages_of(slot);
        self.pool_shard(key.pool, shard).add_guarded(pages);
        if owner != PREPAID {
            self.clients[usize::from(owner)].charge_always(pages);
        }
        Ok(slot)
    }

    /// Registers all leaves with their roots.
    fn restore_roots(&self) -> Result<(), Error> {
        for shard in 0..SHARDS {
            let mut leaf = 0;
            loop {
                let index = self.shards[shard].lock();
                leaf += 1;
                if leaf >= index.leaf_high() {
                    break;
                }
                let key = index.is_live(leaf).then(|| index.key(leaf));
                drop(index);
                let rooted = |key: &LeafKey| key.chunk != 0 && key.chunk != ROOT_CHUNK;
                if let Some(key) = key.filter(rooted)
                    && !self.join_root(key)
                {
                    return Err(Error::Damaged("an object has no root, and no memory for one"));
                }
            }
        }
        self.shards.iter().for_each(|shard| shard.lock().remove_idle_roots());
        Ok(())
    }

    fn restore_reserves(&self) -> Result<(), Error> {
        const BAD: Error = Error::Damaged("a reserved pool is not whole");
        let control = self.control.lock();
        for pool in control.pools.iter().filter(|pool| pool.reserve != 0) {
            if !self.arena.restore_reserve(pool.reserve, pool.reserved_pages) {
                return Err(BAD);
            }
            let client = &self.clients[client_number(pool.members[0].0)];
            client.reserved_pages.fetch_add(pool.reserved_pages, Ordering::Relaxed);
            for first in (0..pool.reserved_pages).step_by(LEAF_SLOTS) {
                let key = Key::new(first >> 32, first as u32);
                let at = HandlePosition::new(pool.number, key, self.seed);
                let count = (pool.reserved_pages - first).min(LEAF_SLOTS as u64) as u32;
                let index = self.shards[at.shard].lock();
                let leaf = index.find(at.leaf_key, at.hash).ok_or(BAD)?;
                if !index.covers(leaf, count) {
                    return Err(BAD);
                }
            }
        }
        Ok(())
    }

    /// Puts on lists what can be moved, and lets what can be shared be found, in no particular order.
    fn restore_lists(&self) {
        for pool in &self.control.lock().pools {
            if pool.reserve != 0 {
                continue;
            }
            self.scan(pool.number, |index, shard, leaf, at| {
                let slot = index.slot(leaf, at);
                if matches!(slot.place(), ValueLocation::Small { .. } | ValueLocation::Large { .. })
                {
                    self.share_memory(slot);
                }
                let (list, place) = List::of(slot.place(), false)?;
                // Memory is listed for one of those that share it, which its back reference
                // tells: no leaf has number 0.
                if self.chains().meta(list, place).back.load(Ordering::Relaxed) == 0 {
                    let listed = self.list(slot, shard, leaf, at, false);
                    let kept = index.set(leaf, at, listed, self.budget());
                    debug_assert!(kept, "changing a used slot takes no memory");
                    self.share_memory(slot);
                }
                None
            });
        }
    }
}
