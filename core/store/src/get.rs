//! Reads values.

use core::ops::Deref;

use spillway_tiers::blade::BladePlace;
use spillway_tiers::lz4::unpack;
use spillway_tiers::sync::Ordering;
use spillway_tiers::{CellPin, DiskRead, LargePin, PageBuf, Pinned, expect_write, fill_word};
use spillway_types::{Get, Key, PAGE_BYTES, PoolId};

use crate::disk::Misfits;
use crate::error::Error;
use crate::flushed::Flushed;
use crate::position::{HandlePosition, Removed};
use crate::samplers::Use;
use crate::slot::{Slot, ValueLocation};
use crate::store::Store;

/// A pinned value: it stays in place while it is read.
#[derive(Debug)]
pub(crate) enum PinnedValue<'a> {
    Miss,
    /// The value is longer than the reader's buffer; its length.
    Short(usize),
    Raw(Pinned<'a>, usize),
    Small(CellPin<'a>),
    Packed(CellPin<'a>),
    Uniform(u32),
    Large(LargePin<'a>),
    /// A slot may be reused while it is read: the recorded checksum detects this.
    Disk(DiskRead<'a>),
    Blade(BladePlace),
}

impl PinnedValue<'_> {
    /// Passes the value in parts with their offsets to the caller, unless it lies in a lower tier.
    #[inline]
    fn show(
        &self,
        scratch: &mut PageBuf,
        take: &mut impl FnMut(usize, &[u8]),
    ) -> Result<Get, Error> {
        let length = match self {
            Self::Miss | Self::Disk(_) | Self::Blade(_) => return Ok(Get::Miss),
            Self::Short(length) => return Ok(Get::Short(*length)),
            Self::Raw(frame, length) => {
                take(0, &frame[..*length]);
                *length
            }
            Self::Small(cell) => {
                take(0, cell);
                cell.len()
            }
            Self::Packed(cell) => {
                if !unpack(cell, &mut scratch.0) {
                    return Err(Error::Corrupt);
                }
                take(0, &scratch.0);
                PAGE_BYTES
            }
            Self::Uniform(word) => {
                fill_word(&mut scratch.0, *word);
                take(0, &scratch.0);
                PAGE_BYTES
            }
            Self::Large(large) => {
                large.show(take);
                large.length()
            }
        };
        Ok(Get::Hit(length))
    }
}

/// A reader's parameters.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// The length of its buffer.
    room: usize,
    /// Whether to count it: the first lookup of a get.
    first: bool,
    /// Whether the value stays, in a private ephemeral pool too.
    keeps: bool,
}

/// A stored page, readable while this lives, even if it is flushed meanwhile.
#[derive(Debug)]
pub struct PageRef<'a> {
    source: Source<'a>,
    tier: Tier,
}

/// The tier that a page was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// This store's memory.
    Memory,
    /// A file.
    Disk,
    /// The blade.
    Blade,
}

#[derive(Debug)]
enum Source<'a> {
    Frame(Pinned<'a>),
    Buffer(&'a PageBuf),
}

/// A value that was looked up. It keeps its contents and place while this lives, even if it is
/// flushed meanwhile.
#[derive(Debug)]
pub struct Value<'a> {
    pub(crate) store: &'a Store,
    pub(crate) pool: PoolId,
    pub(crate) key: Key,
    pub(crate) room: usize,
    pub(crate) held: PinnedValue<'a>,
}

impl<'a> Value<'a> {
    /// The pin of a value longer than `short` bytes; otherwise returns the value.
    pub(crate) fn into_large(self, short: usize) -> Result<LargePin<'a>, Self> {
        match self.held {
            PinnedValue::Large(pin) if pin.length() > short => Ok(pin),
            held => Err(Self { held, ..self }),
        }
    }

    /// Calls `take` with the value, in parts with their offsets, in place or from `scratch`. Returns
    /// the value's pin, so that the caller can drop several pins together.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Disk`] if a lower tier can't return it.
    #[inline]
    pub fn show(
        self,
        scratch: &mut PageBuf,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(Get, Shown<'a>), Error> {
        let Self { store, pool, key, room, mut held } = self;
        while let PinnedValue::Disk(_) | PinnedValue::Blade(_) = held {
            match store.page_of(held, pool, key, scratch) {
                Ok(Some(page)) => {
                    take(0, &*page);
                    return Ok((Get::Hit(PAGE_BYTES), Shown(PinnedValue::Miss)));
                }
                Ok(None) => return Ok((Get::Miss, Shown(PinnedValue::Miss))),
                // A value of another length replaced the page meanwhile.
                Err(Error::NotAPage(_)) => held = store.hold(pool, key, room, false)?,
                Err(error) => return Err(error),
            }
        }
        let got = held.show(scratch, &mut take)?;
        Ok((got, Shown(held)))
    }
}

/// Pins the value until dropped. Dropping is an atomic read-modify-write. Drop it after all copies, not
/// between them: it would stall on outstanding stores.
#[derive(Debug)]
#[must_use]
pub struct Shown<'a>(#[expect(dead_code, reason = "held to be dropped")] PinnedValue<'a>);

static ZERO: PageBuf = PageBuf::ZERO;

impl<'a> PageRef<'a> {
    pub(crate) const fn from_blade(page: &'a PageBuf) -> Self {
        Self { source: Source::Buffer(page), tier: Tier::Blade }
    }

    /// The tier of the page.
    pub const fn tier(&self) -> Tier {
        self.tier
    }
}

impl Deref for PageRef<'_> {
    type Target = [u8; PAGE_BYTES];

    fn deref(&self) -> &Self::Target {
        match &self.source {
            Source::Frame(frame) => frame,
            Source::Buffer(buffer) => &buffer.0,
        }
    }
}

impl Store {
    /// Copies a value out, if it fits in `value`. A get removes the value from a private ephemeral
    /// pool.
    ///
    /// # Errors
    /// [`Error::NoPool`]; [`Error::Corrupt`] and [`Error::Disk`] if a lower tier can't return the
    /// value.
    pub fn get(&self, pool: PoolId, key: Key, value: &mut [u8]) -> Result<Get, Error> {
        let length = match self.hold(pool, key, value.len(), true)? {
            PinnedValue::Miss => return Ok(Get::Miss),
            PinnedValue::Short(length) => return Ok(Get::Short(length)),
            PinnedValue::Raw(frame, length) => {
                value[..length].copy_from_slice(&frame[..length]);
                length
            }
            PinnedValue::Small(cell) => {
                value[..cell.len()].copy_from_slice(&cell);
                cell.len()
            }
            PinnedValue::Packed(cell) => {
                let (page, _) = value.split_first_chunk_mut().ok_or(Error::Corrupt)?;
                if !unpack(&cell, page) {
                    return Err(Error::Corrupt);
                }
                PAGE_BYTES
            }
            PinnedValue::Uniform(word) => {
                fill_word(&mut value[..PAGE_BYTES], word);
                PAGE_BYTES
            }
            PinnedValue::Large(large) => {
                let length = large.length();
                large.read(&mut value[..length]);
                length
            }
            held @ (PinnedValue::Disk(_) | PinnedValue::Blade(_)) => {
                return self.get_from_below(held, pool, key, value);
            }
        };
        Ok(Get::Hit(length))
    }

    /// Reads a page through an aligned buffer on the stack.
    #[cold]
    #[inline(never)]
    fn get_from_below(
        &self,
        held: PinnedValue<'_>,
        pool: PoolId,
        key: Key,
        value: &mut [u8],
    ) -> Result<Get, Error> {
        let mut buffer = PageBuf::ZERO;
        match self.page_of(held, pool, key, &mut buffer) {
            Ok(Some(page)) => {
                value[..PAGE_BYTES].copy_from_slice(&*page);
                Ok(Get::Hit(PAGE_BYTES))
            }
            Ok(None) => Ok(Get::Miss),
            // A value of another length took the page's place meanwhile.
            Err(Error::NotAPage(_)) => self.get(pool, key, value),
            Err(error) => Err(error),
        }
    }

    /// A page in place: in its frame, or unpacked or read into `scratch`, or a page of zeros.
    /// `None` is a miss. A get removes the value from a private ephemeral pool.
    ///
    /// # Errors
    /// As for [`Store::get`], and [`Error::NotAPage`] for a value of another length.
    pub fn read_page<'a>(
        &'a self,
        pool: PoolId,
        key: Key,
        scratch: &'a mut PageBuf,
    ) -> Result<Option<PageRef<'a>>, Error> {
        let held = self.hold(pool, key, PAGE_BYTES, true)?;
        self.page_of(held, pool, key, scratch)
    }

    /// Copies a page out for maintenance of the pool: nothing is counted. Returns whether there is
    /// one. Removes it from a private ephemeral pool, like a get.
    ///
    /// # Errors
    /// As for [`Store::read_page`].
    pub fn peek(&self, pool: PoolId, key: Key, page: &mut PageBuf) -> Result<bool, Error> {
        let mut scratch = PageBuf::ZERO;
        let held = self.hold(pool, key, PAGE_BYTES, false)?;
        let found = self.page_of(held, pool, key, &mut scratch)?;
        if let Some(found) = &found {
            page.0.copy_from_slice(&**found);
        }
        Ok(found.is_some())
    }

    /// Looks up a value of at most `room` bytes, for [`Value::show`]. For readers that forward the
    /// bytes and must not copy them twice. Removes the value from a private ephemeral pool.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn look_up(&self, pool: PoolId, key: Key, room: usize) -> Result<Value<'_>, Error> {
        let held = self.hold(pool, key, room, true)?;
        Ok(Value { store: self, pool, key, room, held })
    }

    /// Passes a value of at most `room` bytes to `take`, as [`Value::show`] does, and removes it
    /// atomically: one of several concurrent calls gets it, and no value is lost without being read.
    /// `take` may be called more than once; the last call counts.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn take(
        &self,
        pool: PoolId,
        key: Key,
        room: usize,
        scratch: &mut PageBuf,
        take: impl FnMut(usize, &[u8]),
    ) -> Result<Get, Error> {
        self.take_held(pool, key, (room, usize::MAX), scratch, take).map(|(got, _)| got)
    }

    /// As [`Self::take`], but does not pass values longer than `shown_max` bytes. Also returns the
    /// value's pin.
    pub(crate) fn take_held(
        &self,
        pool: PoolId,
        key: Key,
        (room, shown_max): (usize, usize),
        scratch: &mut PageBuf,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(Get, PinnedValue<'_>), Error> {
        let (mut first, mut misfits) = (true, Misfits::default());
        loop {
            let (held, slot) = self.hold_slot(pool, key, Look { room, first, keeps: false })?;
            let sum = if let PinnedValue::Disk(read) = &held { Some(read.sum()) } else { None };
            first = false;
            let shown = match &held {
                PinnedValue::Disk(read) if read.read(scratch).map_err(Error::Disk)? => {
                    take(0, &scratch.0);
                    Get::Hit(PAGE_BYTES)
                }
                PinnedValue::Disk(read) if misfits.may_be_a_race(read.sum()) => continue,
                PinnedValue::Disk(_) => return Err(self.corrupt_on_disk()),
                PinnedValue::Blade(place) => {
                    match self.page_from_blade(*place, pool, key, scratch)? {
                        Some(page) => {
                            take(0, &*page);
                            Get::Hit(PAGE_BYTES)
                        }
                        None => Get::Miss,
                    }
                }
                PinnedValue::Large(large) if large.length() > shown_max => Get::Hit(large.length()),
                _ => held.show(scratch, &mut take)?,
            };
            // A pinned value can't be freed, so an equal slot still means the same value.
            if !matches!(shown, Get::Hit(_)) || self.remove_shown(pool, key, slot, sum) {
                return Ok((shown, held));
            }
        }
    }

    /// Removes a value that was read, if it is still the key's value. A private ephemeral pool has
    /// removed it already.
    fn remove_shown(&self, pool: PoolId, key: Key, shown: Slot, sum: Option<u64>) -> bool {
        let Some(access) = self.access(pool) else { return false };
        if access.consumes() {
            return true;
        }
        let at = HandlePosition::new(access.pool, key, self.seed);
        self.tell(access, &at, Use::Flush);
        let mut index = self.shards[at.shard].lock();
        let Some((leaf, slot)) = self.find(&index, &at) else { return false };
        let same_sum = match (slot.place(), &self.files) {
            (ValueLocation::Disk { file, slot }, Some(files)) => {
                Some(files.hold(file, slot).sum()) == sum
            }
            _ => true,
        };
        if slot != shown || !same_sum || !self.pools.is_live(pool) {
            return false;
        }
        let counters = self.client_shard(access.counted(slot.owner()), at.shard);
        counters.flushed_pages.add_guarded(self.pages_of(slot));
        let removed = self.remove(&mut index, at.shard, leaf, at.index, access.ephemeral);
        self.log_flush(access.client, Flushed::Page(pool, key));
        drop(index);
        self.finish(removed);
        true
    }

    /// Converts a pinned value to a page.
    pub(crate) fn page_of<'a>(
        &'a self,
        held: PinnedValue<'a>,
        pool: PoolId,
        key: Key,
        scratch: &'a mut PageBuf,
    ) -> Result<Option<PageRef<'a>>, Error> {
        let mut held = held;
        let mut misfits = Misfits::default();
        while let PinnedValue::Disk(slot) = held {
            if slot.read(scratch).map_err(Error::Disk)? {
                self.bring_back(pool, key, &slot, &scratch.0);
                return Ok(Some(PageRef { source: Source::Buffer(scratch), tier: Tier::Disk }));
            }
            if !misfits.may_be_a_race(slot.sum()) {
                return Err(self.corrupt_on_disk());
            }
            held = self.hold(pool, key, PAGE_BYTES, false)?;
        }
        let source = match held {
            PinnedValue::Miss | PinnedValue::Disk(_) => return Ok(None),
            PinnedValue::Blade(place) => return self.page_from_blade(place, pool, key, scratch),
            PinnedValue::Short(length) => return Err(Error::NotAPage(length)),
            PinnedValue::Raw(page, PAGE_BYTES) => Source::Frame(page),
            PinnedValue::Raw(_, length) => return Err(Error::NotAPage(length)),
            PinnedValue::Small(cell) => return Err(Error::NotAPage(cell.len())),
            PinnedValue::Large(large) => return Err(Error::NotAPage(large.length())),
            PinnedValue::Packed(cell) => {
                if !unpack(&cell, &mut scratch.0) {
                    return Err(Error::Corrupt);
                }
                Source::Buffer(scratch)
            }
            PinnedValue::Uniform(0) => Source::Buffer(&ZERO),
            PinnedValue::Uniform(word) => {
                fill_word(&mut scratch.0, word);
                Source::Buffer(scratch)
            }
        };
        Ok(Some(PageRef { source, tier: Tier::Memory }))
    }

    /// Looks up and pins a value; `room` is the length of the reader's buffer in bytes. The first
    /// lookup of a get is counted.
    pub(crate) fn hold(
        &self,
        pool: PoolId,
        key: Key,
        room: usize,
        first: bool,
    ) -> Result<PinnedValue<'_>, Error> {
        self.hold_slot(pool, key, Look { room, first, keeps: false }).map(|(held, _)| held)
    }

    /// Looks up and pins a value of any length. It stays, in a private ephemeral pool too, and nothing is counted.
    pub(crate) fn hold_kept(&self, pool: PoolId, key: Key) -> Result<PinnedValue<'_>, Error> {
        let look = Look { room: usize::MAX, first: false, keeps: true };
        self.hold_slot(pool, key, look).map(|(held, _)| held)
    }

    /// As [`Self::hold`], with the value's slot.
    #[inline]
    fn hold_slot(
        &self,
        pool: PoolId,
        key: Key,
        look: Look,
    ) -> Result<(PinnedValue<'_>, Slot), Error> {
        let access = self.access(pool).ok_or(Error::NoPool)?;
        let at = HandlePosition::new(access.pool, key, self.seed);
        if look.first {
            self.tell(access, &at, if access.consumes() { Use::Take } else { Use::Get });
        }
        let counters = self.client_shard(access.client, at.shard);
        // The line is fetched at the same time as the lock.
        expect_write(counters);
        let mut index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return Err(Error::NoPool);
        }
        counters.gets.add_guarded(u64::from(look.first));
        let Some((leaf, slot)) = self.find(&index, &at) else {
            return Ok((PinnedValue::Miss, Slot::EMPTY));
        };
        let length = self.length(slot);
        if length > look.room {
            return Ok((PinnedValue::Short(length), slot));
        }
        counters.hits.add_guarded(u64::from(look.first));
        if access.consumes() && !look.keeps {
            let removed = self.remove(&mut index, at.shard, leaf, at.index, true);
            drop(index);
            return Ok((self.adopt(removed), slot));
        }
        if access.ephemeral && look.first && slot.listed() {
            // Makes it the most recent; the mark stays.
            self.unlist(slot, at.shard, true);
            self.list(slot, at.shard, leaf, at.index, true);
        }
        Ok((self.pin(slot).ok_or(Error::Busy)?, slot))
    }

    /// Bytes of a slot's value.
    pub(crate) fn length(&self, slot: Slot) -> usize {
        match slot.place() {
            ValueLocation::Small { length, .. } | ValueLocation::Raw { length, .. } => {
                usize::from(length)
            }
            ValueLocation::Large { cell } => self.large().length(cell),
            ValueLocation::Empty
            | ValueLocation::Packed { .. }
            | ValueLocation::Uniform { .. }
            | ValueLocation::Disk { .. }
            | ValueLocation::Blade(_) => PAGE_BYTES,
        }
    }

    /// Adds a reader's reference to a slot's value, under the shard's lock. `None` if it has too
    /// many readers.
    fn pin(&self, slot: Slot) -> Option<PinnedValue<'_>> {
        match slot.place() {
            ValueLocation::Empty => Some(PinnedValue::Miss),
            ValueLocation::Raw { frame, length, .. } => {
                let page = self.arena.pin(frame)?;
                Some(PinnedValue::Raw(page, usize::from(length)))
            }
            ValueLocation::Small { cell, length } => {
                self.cells.pin(&self.arena, cell, usize::from(length)).map(PinnedValue::Small)
            }
            ValueLocation::Packed { cell, length } => {
                self.cells.pin(&self.arena, cell, usize::from(length)).map(PinnedValue::Packed)
            }
            ValueLocation::Uniform { word } => Some(PinnedValue::Uniform(word)),
            ValueLocation::Large { cell } => self.large().pin(cell).map(PinnedValue::Large),
            ValueLocation::Disk { file, slot } => {
                self.files.as_ref().map(|files| PinnedValue::Disk(files.hold(file, slot)))
            }
            ValueLocation::Blade(place) => Some(PinnedValue::Blade(place)),
        }
    }

    /// Transfers the reference of a removed slot to the reader.
    fn adopt(&self, removed: Removed) -> PinnedValue<'_> {
        let slot = removed.slot;
        self.leave(removed);
        match slot.place() {
            ValueLocation::Empty => PinnedValue::Miss,
            ValueLocation::Raw { frame, length, .. } => {
                PinnedValue::Raw(self.arena.adopt(frame), usize::from(length))
            }
            ValueLocation::Small { cell, length } => {
                PinnedValue::Small(self.cells.adopt(&self.arena, cell, usize::from(length)))
            }
            ValueLocation::Packed { cell, length } => {
                self.packed_pages.fetch_sub(1, Ordering::Relaxed);
                PinnedValue::Packed(self.cells.adopt(&self.arena, cell, usize::from(length)))
            }
            ValueLocation::Uniform { word } => {
                self.uniform_pages.fetch_sub(1, Ordering::Relaxed);
                PinnedValue::Uniform(word)
            }
            ValueLocation::Large { cell } => PinnedValue::Large(self.large().adopt(cell)),
            // Ephemeral values are dropped under pressure, and never moved to lower tiers.
            ValueLocation::Disk { .. } | ValueLocation::Blade(_) => PinnedValue::Miss,
        }
    }
}
