//! The pager of one process: its parts, its budget and its handles.

use crate::batched_counters::BatchedCounters;
use crate::choice::Scheme;
use crate::costs::Costs;
use crate::crowding::Crowding;
use crate::error::Error;
use crate::event_lock::EventLock;
use crate::evicting::Evicting;
use crate::full::Full;
use crate::inherited::Inherited;
use crate::link::Link;
use crate::parking::Parking;
use crate::places::COUNTING_TASKS;
use crate::plan::ChangeInProgress;
use crate::processes::Processes;
use crate::quiesce::Quiesce;
use crate::record::{Asked, Record};
use crate::regions::Regions;
use crate::rest::Rest;
use crate::staging::{Staging, WINDOWS};
use crate::streams::Streams;
use crate::table::{Entry, Table, WINDOW_PAGES};
use crate::tree::{Counters, Eviction, Faults, Replacement, Settings, Slot, Tree, take_slot};
use crate::ways::Ways;
use rustix::io::Errno;
use rustix::thread::futex;
use spillway_platform::lock::Lock;
use spillway_platform::uffd::Uffd;
use spillway_store::{ClientConfig, Config, DiskConfig, Scratch, Store};
use spillway_types::{Key, Lifetime, PoolId, PoolSpec, Sharing};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Part of the budget that the victim pool takes when it is in use.
const POOL_SHARE: i64 = 5;

/// The userfaultfds of a process, by their numbers.
struct Uffds {
    /// Registered ranges fault here.
    main: AtomicI32,
    /// The staging area, without events, so that dropping its pages never waits.
    staging: AtomicI32,
}

/// The pager of one process.
pub struct Pager {
    pub(crate) tree: &'static Tree,
    pub(crate) slot: &'static Slot,
    pub(crate) settings: Settings,
    pub(crate) table: Table,
    pub(crate) regions: Lock<Regions>,
    pub(crate) staging: Staging,
    pub(crate) rest: Rest,
    pub(crate) parking: Parking,
    pub(crate) quiesce: Quiesce,
    pub(crate) streams: Streams,
    pub(crate) link: Link,
    pub(crate) store: Store,
    pub(crate) pool: PoolId,
    pub(crate) event_lock: EventLock,
    pub(crate) processes: Processes,
    uffds: Uffds,
    next_handle: AtomicU64,
    pub(crate) costs: Costs,
    pub(crate) inherited: Inherited,
    pub(crate) evicting: Evicting,
    pub(crate) scheme: Scheme,
    /// Counters of the handlers, then of the buffer sets of the in-thread mode.
    pub(crate) task_counters: Box<[BatchedCounters]>,
    pub(crate) crowding: Crowding,
    pub(crate) buffer_pool: crate::buffers::BufferPool,
    pub(crate) holds: crate::holds::Holds,
    pub(crate) change: ChangeInProgress,
    pub(crate) registrar_slot: crate::registrar_slot::RegistrarSlot,
    pub(crate) full: Full,
    /// What was published about the blade already.
    pub(crate) published: Lock<crate::ways::Published>,
    /// Resources that a fork in progress reserves for its child.
    pub(crate) child_slot: Lock<Option<crate::ways::ChildSlot>>,
}

impl Pager {
    /// A pager for this process with its store, not yet running. `ways` lead to the blade that the
    /// settings name. Faults are answered as `faults` says, which may be otherwise than in the rest of the run.
    ///
    /// # Errors
    /// When there is no memory, or the disk tier's directory can't be used.
    pub fn new(
        tree: &'static Tree,
        pid: u32,
        ways: Option<Ways>,
        faults: Faults,
    ) -> Result<Self, Error> {
        let settings = Settings { faults: faults as u32, ..tree.settings };
        let store = open_store(&settings)?;
        let slot = take_slot(tree, pid);
        let store = match ways {
            Some(ways) => store.with_blade(ways.into_tier(tree, slot)),
            None => store,
        };
        // What goes to a blade goes at the pace of `make_room`.
        let has_spare = settings.faults == Faults::Thread as u32 && store.blade().is_none();
        let first_scheme = match settings.eviction {
            e if e == Eviction::OnDemand as u32 => Eviction::OnDemand,
            _ => Eviction::PreEvict,
        };
        // Another process of the run may have chosen already.
        let told = &tree.counters.choice.scheme;
        let first = first_scheme as u32 + 1;
        let _ = told.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        let client = store.add_client(ClientConfig::default())?;
        let spec = PoolSpec { lifetime: Lifetime::Persistent, sharing: Sharing::Private };
        let pool = store.create_pool(client, spec)?;
        Ok(Self {
            tree,
            slot,
            settings,
            table: Table::new().map_err(Error::Resources)?,
            regions: Lock::new(Regions::new()),
            staging: Staging::new().map_err(Error::Resources)?,
            rest: Rest::new(),
            parking: Parking::new(),
            quiesce: Quiesce::new(),
            streams: Streams::new(),
            link: Link::new(settings.link_delay_ns),
            store,
            pool,
            event_lock: EventLock::new(),
            processes: Processes::default(),
            uffds: Uffds { main: AtomicI32::new(-1), staging: AtomicI32::new(-1) },
            // Handles and staging slots never have the same number, so that an entry on its way in
            // says which of the two it comes from.
            next_handle: AtomicU64::new((WINDOWS * WINDOW_PAGES) as u64),
            costs: Costs::new(),
            inherited: Inherited::default(),
            evicting: Evicting::default(),
            scheme: Scheme::new(first_scheme),
            task_counters: (0..COUNTING_TASKS).map(|_| BatchedCounters::new()).collect(),
            crowding: Crowding::new(),
            buffer_pool: crate::buffers::BufferPool::new(),
            holds: crate::holds::Holds::new(),
            change: ChangeInProgress::new(),
            registrar_slot: crate::registrar_slot::RegistrarSlot::new(),
            full: Full {
                is_told: AtomicU32::new(0),
                spare: Lock::new(has_spare.then(Scratch::new)),
            },
            published: Lock::new(crate::ways::Published::default()),
            child_slot: Lock::new(None),
        })
    }

    pub(crate) fn counters(&self) -> &'static Counters {
        &self.tree.counters
    }

    pub(crate) fn main(&self) -> Uffd {
        Uffd::from_number(self.uffds.main.load(Ordering::Relaxed))
    }

    pub(crate) fn staging_uffd(&self) -> Uffd {
        Uffd::from_number(self.uffds.staging.load(Ordering::Relaxed))
    }

    pub(crate) fn set_uffds(&self, main: Uffd, staging: Uffd) {
        self.uffds.main.store(main.number(), Ordering::Release);
        self.uffds.staging.store(staging.number(), Ordering::Release);
    }

    /// Moves this pager to a forked child's slot: what the child has, its parent counts.
    ///
    /// # Errors
    /// When the slot that the parent set aside is not there any more.
    pub(crate) fn become_child(&mut self, pid: u32) -> Result<(), Error> {
        self.slot = self.inherit_slot(pid)?;
        let inherited = self.store.memory_bytes() as i64;
        self.inherited.store_bytes.store(inherited, Ordering::Relaxed);
        self.buffer_pool = crate::buffers::BufferPool::new();
        self.holds.let_go_after_fork();
        self.change.ranges.let_go_after_fork();
        self.evicting = Evicting::default();
        self.processes.watcher.store(0, Ordering::Relaxed);
        self.processes.ready.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The page under a store key: a million pages to an object.
    pub(crate) fn key(handle: u64) -> Key {
        Key { object: handle >> 20, index: (handle & 0xf_ffff) as u32 }
    }

    pub(crate) fn fresh_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Records a request to the store, if recording is on.
    pub(crate) fn record(&self, asked: Asked, handle: u64) {
        if self.settings.record != 0 {
            self.note_record(asked, handle);
        }
    }

    #[cold]
    fn note_record(&self, asked: Asked, handle: u64) {
        let start = self.tree.slots.as_ptr() as usize;
        let slot = (std::ptr::from_ref(self.slot) as usize - start) / size_of::<Slot>();
        let page = crate::record::page(slot, handle);
        self.tree.records.note(Record { at_ns: crate::link::now_ns(), asked, page });
    }

    /// Frees the store's copy of a page later, because nothing waits for it.
    pub(crate) fn flush_later(&self, handle: u64, counters: &BatchedCounters) {
        self.record(Asked::Free, handle);
        self.drop_later(handle, counters);
    }

    /// As [`Self::flush_later`], of a copy that was taken.
    pub(crate) fn drop_later(&self, handle: u64, counters: &BatchedCounters) {
        if !counters.queue_stale(handle) {
            self.drop_copy(handle);
        }
    }

    /// Publishes the counters of the tasks that answer faults, and frees the stale copies that they
    /// queued.
    pub(crate) fn publish_counters(&self) {
        for counters in &self.task_counters {
            counters.publish(self.tree, |handle| self.drop_copy(handle));
        }
    }

    /// Counts a page that is no longer far, unless another process counts it. This happens at once: with
    /// batched counting, the program would seem to hold pages twice.
    pub(crate) fn note_near(&self, seen: Entry) {
        if !seen.has(Entry::INHERITED) {
            self.count_far(-1);
        }
    }

    /// Frees the store's copy of a page.
    pub(crate) fn flush(&self, handle: u64) {
        self.record(Asked::Free, handle);
        self.drop_copy(handle);
    }

    fn drop_copy(&self, handle: u64) {
        self.store.flush(self.pool, Self::key(handle));
    }

    /// Counts pages in. True when the budget asks for eviction now.
    pub(crate) fn charge(&self, pages: i64) -> bool {
        let counters = self.counters();
        self.slot.resident_pages.fetch_add(pages, Ordering::Relaxed);
        let now = counters.resident_pages.fetch_add(pages, Ordering::Relaxed) + pages;
        if now > counters.resident_peak_pages.load(Ordering::Relaxed) {
            counters.resident_peak_pages.fetch_max(now, Ordering::Relaxed);
        }
        now > self.budget_pages() as i64
    }

    /// Counts pages out.
    pub(crate) fn uncharge(&self, pages: i64) {
        self.slot.resident_pages.fetch_sub(pages, Ordering::Relaxed);
        self.counters().resident_pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Counts far pages, in or out.
    pub(crate) fn count_far(&self, pages: i64) {
        self.slot.far_pages.fetch_add(pages, Ordering::Relaxed);
        self.counters().far_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Pages in the whole tree above `limit_pages`.
    pub(crate) fn excess(&self, limit_pages: u64) -> i64 {
        self.counters().resident_pages.load(Ordering::Relaxed) - limit_pages as i64
    }

    /// Managed pages that may be resident in the whole tree now. It may change at any time.
    pub(crate) fn budget_pages(&self) -> u64 {
        self.tree.budget_pages.load(Ordering::Relaxed)
    }

    /// The budget less the evictor's reserve, or its half, third and so on.
    pub(crate) fn budget_less_reserve(&self, divisor: u64) -> u64 {
        let budget_pages = self.budget_pages();
        budget_pages.saturating_sub(crate::tree::reserve_pages(budget_pages) / divisor)
    }

    /// Whether pages leave ahead of need.
    pub(crate) fn pre_evicts(&self) -> bool {
        self.scheme.is(Eviction::PreEvict)
    }

    /// Pages that the victim pool holds; 0 for plain round-robin.
    pub(crate) fn pool_pages(&self) -> i64 {
        let clock = match self.settings.replacement {
            r if r == Replacement::Clock as u32 => true,
            r if r == Replacement::RoundRobin as u32 => false,
            _ => self.costs.pool_pays(),
        };
        if clock { self.budget_pages() as i64 / POOL_SHARE } else { 0 }
    }

    /// Whether a page that is read in should be known to be clean when it leaves.
    pub(crate) fn clean_pays(&self) -> bool {
        self.costs.clean_pays(self.next_handle.load(Ordering::Relaxed))
    }

    /// Wakes the evictor, once.
    pub(crate) fn want_eviction(&self) {
        let wanted = &self.evicting.wanted;
        if wanted.load(Ordering::Relaxed) == 0 && wanted.swap(1, Ordering::AcqRel) == 0 {
            let _ = futex::wake(wanted, futex::Flags::PRIVATE, 1);
        }
    }

    /// Brings the shared counts and the gauges of the store up to date.
    pub(crate) fn publish(&self) {
        self.publish_counters();
        let inherited = self.inherited.store_bytes.load(Ordering::Relaxed);
        let own = (self.store.memory_bytes() as i64 - inherited).max(0);
        let before = self.slot.store_bytes.swap(own, Ordering::Relaxed);
        let counters = self.counters();
        let now = counters.store_bytes.fetch_add(own - before, Ordering::Relaxed) + own - before;
        counters.store_peak_bytes.fetch_max(now, Ordering::Relaxed);
        counters.disk_bytes.store(self.store.disk_bytes() as i64, Ordering::Relaxed);
        counters.same_filled_pages.store(self.store.same_filled_pages() as i64, Ordering::Relaxed);
        counters.compressed_pages.store(self.store.compressed_pages() as i64, Ordering::Relaxed);
        self.publish_tiers();
    }

    /// The entry of the page at an address.
    #[must_use]
    pub fn entry(&self, address: usize) -> Entry {
        let found = self.table.find(address);
        found.map_or(Entry::NONE, |leaf| leaf.load(crate::table::place(address)))
    }
}

fn open_store(settings: &Settings) -> Result<Store, Error> {
    let mut config = Config::embedded(settings.store_bytes);
    config.compress = settings.compress != 0;
    if settings.disk_path_len > 0 {
        let path = settings.disk_path.get(..settings.disk_path_len as usize);
        let path = std::ffi::OsStr::from_bytes(path.ok_or(Error::Store(Errno::NAMETOOLONG))?);
        let delay_ns = settings.disk_delay_ns;
        config.disk = Some(DiskConfig { delay_ns, ..DiskConfig::new(path.into(), u64::MAX) });
    }
    Ok(Store::open(config)?)
}
