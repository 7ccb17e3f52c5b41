//! The store itself: opening it, clients, and figures.

use spillway_tiers::blade::Blade;
use spillway_tiers::sync::{AtomicU64, Lock, Ordering};
use spillway_tiers::{Apart, Arena, Budget, Cells, Disk, GrowArray, Large, Table, Use};
use spillway_types::{ClientId, PAGE_BYTES, Statistics};

use crate::chains::Chains;
use crate::client::{ClientInfo, ClientShard, ClientSlot, client_id, client_number};
use crate::config::{ClientConfig, Config, Dedup};
use crate::error::Error;
use crate::file_tier;
use crate::flushed::Flushed;
use crate::index::Index;
use crate::pool::{Control, Lifetimes, POOLS_MAX, PoolShard, Pools};
use crate::position::{SHARDS, Seed, shards_used};
use crate::samplers::Samplers;
use crate::scan::Scan;
use crate::scratch::Scratch;
use crate::slot::CLIENTS_MAX;
use crate::tables::{Opened, Tables};

/// Bits of the clock below those of a stamp.
const CLOCK_SHIFT: u32 = 20;

/// A page store. All operations go through `&self`, from any number of tasks.
#[derive(Debug)]
pub struct Store {
    pub(crate) config: Config,
    pub(crate) arena: Arena,
    pub(crate) cells: Cells,
    pub(crate) files: Option<Disk>,
    pub(crate) blade: Option<Blade>,
    pub(crate) shards: Box<[Apart<Lock<Index>>]>,
    pub(crate) tables: Tables,
    pub(crate) clients: Table<ClientSlot>,
    /// The highest client number.
    pub(crate) clients_high: AtomicU64,
    pub(crate) client_shards: GrowArray<ClientShard>,
    pub(crate) pools: Pools,
    /// Pages of each pool in each shard.
    pub(crate) pool_shards: GrowArray<PoolShard>,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) control: Lock<Control>,
    /// Removals made while their client is frozen; by the client's number.
    pub(crate) flush_log: Lock<Vec<(usize, Flushed)>>,
    /// Samplers of clients' reuse distances.
    pub(crate) samplers: Samplers,
    /// The part of the capacity that is not lent ([`Store::set_capacity`]).
    pub(crate) own_bytes: AtomicU64,
    pub(crate) uniform_pages: AtomicU64,
    pub(crate) packed_pages: AtomicU64,
    pub(crate) sharing_scan: Lock<Scan>,
    pub(crate) merged_values: AtomicU64,
    pub(crate) unshared_values: AtomicU64,
    /// A coarse clock for the order of use; see [`Store::tick`].
    clock: AtomicU64,
    /// Ephemeral values on lists.
    pub(crate) ephemeral_values: AtomicU64,
    /// Where the next search for pages to demote begins.
    pub(crate) demote_turn: AtomicU64,
    /// State of puts that make room themselves ([`Config::makes_room`]).
    pub(crate) own_scratch: Option<Box<Lock<Scratch>>>,
    /// Gets refused because the disk returned other bytes than were written.
    pub(crate) corrupt_pages: AtomicU64,
    pub(crate) seed: Seed,
    /// The random identity of this store.
    pub(crate) instance: u64,
}

impl Store {
    /// Opens an empty store.
    ///
    /// # Errors
    /// [`Error::Config`] for a capacity that cannot be served, [`Error::Io`] when address space or
    /// the disk directory are refused.
    pub fn open(config: Config) -> Result<Self, Error> {
        config.check()?;
        let shares = config.dedup != Dedup::Off;
        let arena = Arena::open(config.capacity_bytes, config.backing, shares)?;
        let opened = Tables::open(&config, random()?, random()?)?;
        let files = file_tier::open(&config)?;
        Self::with(config, arena, files, opened)
    }

    /// A store without clients in some memory.
    pub(crate) fn with(
        config: Config,
        arena: Arena,
        files: Option<Disk>,
        opened: Opened,
    ) -> Result<Self, Error> {
        let Opened { tables, clients, pools } = opened;
        let mut arena = arena;
        if config.compress {
            arena.keep_for_packing();
        }
        let cells = Cells::open(&arena, config.dedup != Dedup::Off)?;
        let own_scratch = config.makes_room.then(|| Box::new(Lock::new(Scratch::new())));
        Ok(Self {
            arena,
            cells,
            files,
            blade: None,
            shards: tables
                .index(&config)
                .into_iter()
                .map(|index| Apart(Lock::new(index)))
                .collect(),
            seed: Seed {
                secret: tables.seed(),
                shard_mask: shards_used(config.capacity_bytes) - 1,
            },
            instance: tables.instance(),
            tables,
            clients,
            clients_high: AtomicU64::new(0),
            client_shards: GrowArray::reserve(CLIENTS_MAX * SHARDS)?,
            pools,
            pool_shards: GrowArray::reserve(PoolShard::count(POOLS_MAX))?,
            lifetimes: Lifetimes::new(),
            control: Lock::new(Control::default()),
            flush_log: Lock::new(Vec::new()),
            samplers: Samplers::new(),
            own_bytes: AtomicU64::new(config.capacity_bytes),
            uniform_pages: AtomicU64::new(0),
            packed_pages: AtomicU64::new(0),
            sharing_scan: Lock::new(Scan::default()),
            merged_values: AtomicU64::new(0),
            unshared_values: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            ephemeral_values: AtomicU64::new(0),
            demote_turn: AtomicU64::new(0),
            own_scratch,
            corrupt_pages: AtomicU64::new(0),
            config,
        })
    }

    /// Adds a client.
    ///
    /// # Errors
    /// [`Error::TableFull`] when there are 4095 clients, or no memory for another.
    pub fn add_client(&self, config: ClientConfig) -> Result<ClientId, Error> {
        let mut control = self.control.lock();
        // Number 0 stays unused, so that no slot of a client is all zero bits.
        let free = (1..CLIENTS_MAX).find(|&n| self.clients[n].id.load(Ordering::Relaxed) == 0);
        let number = free.ok_or(Error::TableFull)?;
        if !self.client_shards.grow((number + 1) * SHARDS, self.budget(), Use::Index) {
            return Err(Error::TableFull);
        }
        for shard in 0..SHARDS {
            self.client_shard(number as u16, shard).clear();
        }
        let high = self.clients_high.load(Ordering::Relaxed).max(number as u64);
        self.clients_high.store(high, Ordering::Release);
        let id = client_id(self.tables.next_serial(), number);
        let domain = control.domain_of(number, config)?;
        self.clients[number].open(id, config, domain);
        Ok(id)
    }

    /// All clients, with their present settings.
    pub fn clients(&self) -> Vec<ClientInfo> {
        let _control = self.control.lock();
        let info = |client: &ClientSlot| {
            let id = ClientId(client.id.load(Ordering::Relaxed));
            (id.0 != 0).then(|| ClientInfo { id, config: client.config() })
        };
        self.clients.iter().filter_map(info).collect()
    }

    /// The place of a client in the table.
    pub(crate) fn client(&self, id: ClientId) -> Result<(usize, &ClientSlot), Error> {
        let number = client_number(id);
        let client = &self.clients[number];
        if id.0 == 0 || client.id.load(Ordering::Acquire) != id.0 {
            return Err(Error::NoClient);
        }
        Ok((number, client))
    }

    /// Sets a client's target. Puts above the target are refused; stored values stay.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn set_target(&self, client: ClientId, target_pages: u64) -> Result<(), Error> {
        self.client(client)?.1.set_target(target_pages);
        Ok(())
    }

    /// A client's counters.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn statistics(&self, client: ClientId) -> Result<Statistics, Error> {
        let (number, client) = self.client(client)?;
        let mut sum = Statistics {
            used_pages: client.used_pages(),
            target_pages: client.target_pages(),
            reserved_pages: client.reserved_pages.load(Ordering::Relaxed),
            ..Statistics::default()
        };
        for shard in 0..SHARDS {
            // Under the lock, so that hits never run ahead of gets.
            let _index = self.shards[shard].lock();
            self.client_shard(number as u16, shard).add_to(&mut sum);
        }
        Ok(sum)
    }

    /// Bytes of memory that frames and index take, including reservations.
    pub fn memory_bytes(&self) -> u64 {
        self.arena.budget().taken()
    }

    /// Bytes of [`Self::memory_bytes`] that are free frames: of chunks in use, and of reserved pools.
    pub fn free_frame_bytes(&self) -> u64 {
        self.arena.free_bytes()
    }

    /// Bytes of pages in files.
    pub fn disk_bytes(&self) -> u64 {
        self.files.as_ref().map_or(0, |files| files.pages() * PAGE_BYTES as u64)
    }

    /// Pages read back from files.
    pub fn disk_reads(&self) -> u64 {
        self.files.as_ref().map_or(0, Disk::reads)
    }

    /// Stored pages that are filled with one word and take no frame.
    pub fn same_filled_pages(&self) -> u64 {
        self.uniform_pages.load(Ordering::Relaxed)
    }

    /// Stored pages that are packed with LZ4.
    pub fn compressed_pages(&self) -> u64 {
        self.packed_pages.load(Ordering::Relaxed)
    }

    /// Returns cached free memory to the host.
    pub fn trim(&self) {
        self.arena.trim();
    }

    /// Returns the part of that memory that was unused since the last call. Call it periodically.
    pub fn cool(&self) {
        self.arena.cool();
    }

    /// Numbers that clients can have now.
    pub(crate) fn client_numbers(&self) -> core::ops::Range<u16> {
        1..self.clients_high.load(Ordering::Acquire) as u16 + 1
    }

    /// Where long values lie.
    pub(crate) const fn large(&self) -> Large<'_> {
        Large { arena: &self.arena, cells: &self.cells }
    }

    /// What index and frames take their memory from.
    pub(crate) fn budget(&self) -> &Budget {
        self.arena.budget()
    }

    pub(crate) fn chains(&self) -> Chains<'_> {
        Chains { arena: &self.arena, cells: &self.cells }
    }

    /// The time of a use of a value. Only uses of ephemeral values advance the clock, because their
    /// order counts; the others read it, which many tasks can do at once.
    pub(crate) fn tick(&self, ephemeral: bool) -> u16 {
        if !ephemeral {
            return self.now();
        }
        // The more values there are, the coarser the ticks, so that the 16 bits go round only when
        // each value was used eight times over.
        let values = self.ephemeral_values.load(Ordering::Relaxed);
        let step = (1 << CLOCK_SHIFT) / (1 + values / (1 << 13));
        (self.clock.fetch_add(step, Ordering::Relaxed) >> CLOCK_SHIFT) as u16
    }

    /// Advances the coarse time by one.
    pub(crate) fn advance(&self) {
        self.clock.fetch_add(1 << CLOCK_SHIFT, Ordering::Relaxed);
    }

    /// The coarse time.
    pub(crate) fn now(&self) -> u16 {
        (self.clock.load(Ordering::Relaxed) >> CLOCK_SHIFT) as u16
    }
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
