//! A disk whose blocks lie in the store or in a file.
//!
//! A block has 4096 bytes. The steps of a *swap* disk, in order:
//!
//! | request | steps |
//! |---|---|
//! | write | put; mark *store* in the map. If the put is refused: write to the file; mark *file* |
//! | read | get; use its bytes only if the map says *store* |
//! | discard, zeros | mark *nowhere*; flush |
//! | demotion | read from the store; write to the file; mark *file*; flush |
//!
//! Only the map decides where a block's value lies. So a read returns the acknowledged value, whenever a
//! daemon was killed: until a step changes the map, the old value is still where the map says. The
//! exception is a write, but its guest got no answer, so the write is executed again (`inflight`). When a
//! disk is opened, it flushes values in the store that the map does not name. A block that the map names
//! but the store lacks is *lost*: reading it is an error until it is written or discarded.
//!
//! Block 0 of a swap disk always lies in the file. It holds the signature by which a guest recognizes its
//! swap space after a restart of host and store.
//!
//! A *cache* disk has all blocks in the file, and clean copies of some in an ephemeral pool. A write
//! drops the copy and then writes to the file. A read that misses in the pool reads the file and puts a
//! copy.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use spillway_block_store::Stripes;
use spillway_serving::{CommandKind, Latencies};
use spillway_store::{PageBuf, Store};
use spillway_types::{ClientId, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Put};

use crate::ages::Ages;
use crate::attachment::{Attachment, GuestState};
use crate::backing::{Backing, map_path};
use crate::config::{DiskConfig, Kind};
use crate::counters::{Counters, DiskStatistics};
use crate::error::Error;
use crate::group::{Group, runs};
use crate::map::{BlockLocation, Map};

/// The kinds of requests.
const REQUESTS: &[CommandKind] = &[
    CommandKind::Read,
    CommandKind::Write,
    CommandKind::Discard,
    CommandKind::Flush,
    CommandKind::Other,
];

/// A tmem disk. Any number of threads may send requests.
#[derive(Debug)]
pub struct Disk {
    pub(crate) store: Arc<Store>,
    pub(crate) config: DiskConfig,
    pub(crate) pool: PoolId,
    pub(crate) file: Backing,
    pub(crate) map: Map,
    pub(crate) stripes: Stripes,
    pub(crate) ages: Ages,
    pub(crate) counters: Counters,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) guest: Attachment,
    /// Whether writes go only to the file.
    pub(crate) closed: AtomicBool,
    opened: Instant,
    /// The second since `opened`, counted from 1, in which a failure was last logged.
    said: AtomicU64,
    /// The failure that was last logged, and when.
    last_error: Mutex<Option<(String, Instant)>>,
}

fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u128::from_ne_bytes(bytes))
}

pub(crate) const fn key_of(block: u64) -> Key {
    Key::new(block >> 32, block as u32)
}

impl Disk {
    /// Opens a disk: its backing file, its map and its pool. Creates those that do not exist.
    ///
    /// # Errors
    /// A file can't be used, or the store has no pool left.
    pub fn open(store: Arc<Store>, config: DiskConfig) -> Result<Self, Error> {
        let file = Backing::open(&config)?;
        let path = map_path(&config.backing);
        if file.is_new() {
            // A map that belonged to another file would take the new file's zeros for written values.
            let _ = std::fs::remove_file(&path);
        }
        let map = Map::open(&path, file.blocks(), config.kind)?;
        let listed = if config.kind == Kind::Swap { file.blocks() } else { 0 };
        let mut disk = Self {
            store,
            pool: PoolId(0),
            file,
            map,
            stripes: Stripes::new(),
            ages: Ages::new(listed),
            counters: Counters::default(),
            latencies: Arc::new(Latencies::new(REQUESTS)),
            guest: Attachment::new(),
            closed: AtomicBool::new(false),
            opened: Instant::now(),
            said: AtomicU64::new(0),
            last_error: Mutex::default(),
            config,
        };
        disk.take_up_pool()?;
        Ok(disk)
    }

    /// Finds the disk's pool from before, or creates one.
    fn take_up_pool(&mut self) -> Result<(), Error> {
        let client = self.config.client;
        let pools = self.store.pools(client)?;
        let is_it = |pool: &PoolId| self.store.identity(*pool) == self.map.pool();
        let known = pools.iter().map(|pool| pool.id).find(is_it);
        if self.config.kind == Kind::Cache {
            // The file may have changed while no daemon had it open, so the old copies are dropped.
            known.map_or(Ok(()), |pool| self.store.leave_pool(pool))?;
            // The pool is shared, because a get from a private ephemeral pool removes the value.
            let uuid = random()?;
            self.store.authorise(client, uuid)?;
            self.pool = self.store.create_pool(client, PoolSpec::shared_ephemeral(uuid))?;
        } else if let Some(pool) = known {
            self.pool = pool;
        } else {
            self.pool = self.store.create_pool(client, PoolSpec::PERSISTENT)?;
        }
        self.map.set_pool(self.store.identity(self.pool))?;
        if self.config.kind == Kind::Swap { self.settle() } else { Ok(()) }
    }

    /// Makes map and store agree after a kill or a restart.
    fn settle(&self) -> Result<(), Error> {
        let mut lost = 0;
        for block in self.map.at(BlockLocation::Store, 0..self.blocks()) {
            if !self.store.exists(self.pool, key_of(block)) {
                let group = Group::of(block);
                self.map.set(group.first, 1 << (block - group.first), BlockLocation::Lost)?;
                lost += 1;
            }
        }
        if lost > 0 {
            tracing::warn!(
                disk = self.config.name,
                "{lost} blocks were in a store that is gone: reading them is an error"
            );
        }
        self.forget_unless(|block| {
            block < self.blocks() && self.map.place(block) == BlockLocation::Store
        })?;
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The client that owns the disk's pages.
    pub const fn client(&self) -> ClientId {
        self.config.client
    }

    /// The kind of the disk.
    pub const fn kind(&self) -> Kind {
        self.config.kind
    }

    /// The pool of its blocks.
    pub const fn pool(&self) -> PoolId {
        self.pool
    }

    /// Its length in blocks of 4096 bytes.
    pub const fn blocks(&self) -> u64 {
        self.file.blocks()
    }

    /// What its guest does, and since when.
    pub fn guest(&self) -> (GuestState, Duration) {
        self.guest.state()
    }

    /// Its pages in the store.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn held_pages(&self) -> Result<u64, Error> {
        let pools = self.store.pools(self.config.client)?;
        Ok(pools.iter().find(|pool| pool.id == self.pool).map_or(0, |pool| pool.pages))
    }

    /// Its pages in the store that the guest wrote [`UNREAD_AFTER`](crate::UNREAD_AFTER) before `now` or earlier, and
    /// has not read since the daemon started. Of a cache disk, none. Takes time for each block of the disk.
    pub fn unread_pages(&self, now: Instant) -> u64 {
        if self.config.kind == Kind::Cache {
            return 0;
        }
        let is_unread = self.ages.unread(now);
        let held = self.map.at(BlockLocation::Store, 0..self.blocks());
        held.filter(|&block| is_unread(block)).count() as u64
    }

    /// Its counters.
    pub fn statistics(&self) -> DiskStatistics {
        self.counters.sample()
    }

    /// Why a request last failed and how long ago, to a second; none if no request has failed since it was opened.
    pub fn last_error(&self) -> Option<(String, Duration)> {
        let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|(why, when)| (why.clone(), when.elapsed()))
    }

    /// The latencies of its requests.
    pub const fn latencies(&self) -> &Arc<Latencies> {
        &self.latencies
    }

    /// Begins a new turn of the ages by which blocks are chosen for demotion.
    pub fn next_turn(&self, now: Instant) {
        self.ages.next_turn(now);
    }

    /// Reads blocks of one group.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::File`], [`Error::Store`].
    pub fn read(&self, first: u64, pages: &mut [PageBuf]) -> Result<(), Error> {
        let _shared = self.stripes.shared(Group::of(first).number);
        let mut from_file = 0_u64;
        for (at, page) in pages.iter_mut().enumerate() {
            let block = first + at as u64;
            let place = self.place(block);
            let asked = self.ask_store(block, page);
            // A failure of the store matters only to blocks that lie in it.
            let stored =
                if place == BlockLocation::Store { asked? } else { asked.unwrap_or(false) };
            match place {
                BlockLocation::Store if stored => {
                    self.counters.store_reads.add(1);
                    self.ages.read_back(block);
                }
                BlockLocation::File if stored && self.config.kind == Kind::Cache => {
                    self.counters.store_reads.add(1);
                }
                BlockLocation::File => from_file |= 1 << at,
                BlockLocation::Nowhere => {
                    page.0.fill(0);
                    self.counters.zero_reads.add(1);
                }
                BlockLocation::Store | BlockLocation::Lost => return Err(Error::Lost(block)),
            }
        }
        for (start, length) in runs(from_file) {
            let found = &mut pages[start..start + length];
            self.file.read(first + start as u64, found)?;
            self.counters.file_reads.add(length as u64);
            if self.config.kind == Kind::Cache {
                for (at, page) in (first + start as u64..).zip(found) {
                    self.offer(at, page);
                }
            }
        }
        Ok(())
    }

    /// Gets a block from the store. This happens for every block that is read, also for blocks in the file, so that the
    /// store's statistics include all of the client's gets.
    fn ask_store(&self, block: u64, page: &mut PageBuf) -> Result<bool, Error> {
        Ok(self.store.get(self.pool, key_of(block), &mut page.0)? == Get::Hit(PAGE_BYTES))
    }

    /// Puts a block. Returns whether the store took it.
    fn offer(&self, block: u64, page: &PageBuf) -> bool {
        let taken = self.store.put(self.pool, key_of(block), &page.0) == Put::Stored;
        if !taken {
            self.counters.refused.add(1);
        }
        taken
    }

    /// Removes blocks from the store.
    pub(crate) fn forget(&self, first: u64, count: usize) {
        for block in first..first + count as u64 {
            self.store.flush(self.pool, key_of(block));
        }
    }

    /// The place of a block's value.
    fn place(&self, block: u64) -> BlockLocation {
        match self.config.kind {
            Kind::Swap => self.map.place(block),
            Kind::Cache => BlockLocation::File,
        }
    }

    /// Writes blocks of one group.
    ///
    /// # Errors
    /// [`Error::File`]. Blocks that were not written are lost.
    pub fn write(&self, first: u64, pages: &[PageBuf]) -> Result<(), Error> {
        let _alone = self.stripes.alone(Group::of(first).number);
        self.change(first, pages)
    }

    /// As [`Self::write`], for a caller that holds the group's lock.
    fn change(&self, first: u64, pages: &[PageBuf]) -> Result<(), Error> {
        match self.config.kind {
            Kind::Swap => self.change_swap(first, pages),
            Kind::Cache => {
                self.forget(first, pages.len());
                self.file.write(first, pages)?;
                self.counters.file_writes.add(pages.len() as u64);
                Ok(())
            }
        }
    }

    fn change_swap(&self, first: u64, pages: &[PageBuf]) -> Result<(), Error> {
        let group = Group::of(first);
        let shift = first - group.first;
        let is_closed = self.closed.load(Ordering::Relaxed);
        let mut stored = 0_u64;
        for (at, page) in pages.iter().enumerate() {
            let block = first + at as u64;
            // Block 0, the signature, always goes to the file.
            if block != 0 && !is_closed && self.offer(block, page) {
                stored |= 1 << at;
                self.ages.put(block);
            }
        }
        let all = u64::MAX >> (u64::BITS - pages.len() as u32);
        if let Err(error) = self.map.set(group.first, stored << shift, BlockLocation::Store) {
            runs(stored).for_each(|(start, length)| self.forget(first + start as u64, length));
            return Err(error.into());
        }
        self.counters.store_writes.add(u64::from(stored.count_ones()));
        let mut failed = None;
        for (start, length) in runs(all & !stored) {
            let run = (u64::MAX >> (u64::BITS - length as u32)) << (start as u64 + shift);
            let written = self.file.write(first + start as u64, &pages[start..start + length]);
            let place = if written.is_ok() { BlockLocation::File } else { BlockLocation::Lost };
            // The refused put has dropped the old value, so if the file failed the block is lost.
            let known = self.map.set(group.first, run, place);
            match written.and(known) {
                Ok(()) => self.counters.file_writes.add(length as u64),
                Err(error) => failed = failed.or(Some(error)),
            }
            if is_closed {
                self.forget(first + start as u64, length);
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Changes a part of one block.
    ///
    /// # Errors
    /// As for [`Self::read`] and [`Self::write`].
    pub fn write_part(&self, block: u64, start: usize, bytes: &[u8]) -> Result<(), Error> {
        let _alone = self.stripes.alone(Group::of(block).number);
        let mut page = PageBuf::ZERO;
        self.peek(block, &mut page)?;
        page.0[start..start + bytes.len()].copy_from_slice(bytes);
        self.change(block, std::slice::from_ref(&page))
    }

    /// Reads a block for the disk itself, without counting in the store's statistics.
    fn peek(&self, block: u64, page: &mut PageBuf) -> Result<(), Error> {
        match self.place(block) {
            BlockLocation::Nowhere => page.0.fill(0),
            BlockLocation::File => self.file.read(block, std::slice::from_mut(page))?,
            BlockLocation::Lost => return Err(Error::Lost(block)),
            BlockLocation::Store => {
                if !self.store.peek(self.pool, key_of(block), page)? {
                    return Err(Error::Lost(block));
                }
            }
        }
        Ok(())
    }

    /// Fills blocks of one group with zeros, and frees their memory.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn zero(&self, first: u64, count: usize) -> Result<(), Error> {
        let group = Group::of(first);
        let _alone = self.stripes.alone(group.number);
        if self.config.kind == Kind::Cache {
            self.forget(first, count);
            self.file.zero(first, count)?;
        } else {
            let stored = self.map.at(BlockLocation::Store, first..first + count as u64);
            let stored = stored.fold(0_u64, |sum, block| sum | 1 << (block - group.first));
            let all = (u64::MAX >> (u64::BITS - count as u32)) << (first - group.first);
            self.map.set(group.first, all, BlockLocation::Nowhere)?;
            runs(stored)
                .for_each(|(start, length)| self.forget(group.first + start as u64, length));
        }
        self.counters.discarded.add(count as u64);
        Ok(())
    }

    /// Makes completed writes of a cache disk durable. For a swap disk it does nothing, because swapped pages are
    /// useless after the host restarts.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn sync(&self) -> Result<(), Error> {
        match self.config.kind {
            Kind::Swap => Ok(()),
            Kind::Cache => Ok(self.file.sync()?),
        }
    }
}

impl Disk {
    /// Counts a failed request, and logs the reason at most once a second.
    pub(crate) fn count_error(&self, error: &Error) {
        self.counters.errors.add(1);
        let now = self.opened.elapsed().as_secs() + 1;
        if self.said.swap(now, Ordering::Relaxed) != now {
            let errors = self.counters.errors.get();
            tracing::error!(disk = self.config.name, errors, "a request failed: {error}");
            let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some((error.to_string(), Instant::now()));
        }
    }
}
