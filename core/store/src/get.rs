//! Reading a value.

use core::ops::Deref;

use spillway_tiers::lz4::unpack;
use spillway_tiers::{CellPin, PageBuf, Pinned, fill_word};
use spillway_types::{Get, Key, PAGE_BYTES, PoolId};

use crate::error::Error;
use crate::shard::Position;
use crate::slot::{Place, Slot};
use crate::store::Store;

/// A value that stays where it is while it is read.
#[derive(Debug)]
enum Held<'a> {
    Miss,
    /// Longer than the reader has room for; the length.
    Short(usize),
    Page(Pinned<'a>),
    Small(CellPin<'a>),
    Packed(CellPin<'a>),
    Uniform(u32),
}

/// A stored page, readable as long as this lives, even when it is flushed meanwhile.
#[derive(Debug)]
pub struct PageRef<'a>(Source<'a>);

#[derive(Debug)]
enum Source<'a> {
    Frame(Pinned<'a>),
    Buffer(&'a PageBuf),
}

static ZERO: PageBuf = PageBuf::ZERO;

impl Deref for PageRef<'_> {
    type Target = [u8; PAGE_BYTES];

    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Source::Frame(frame) => frame,
            Source::Buffer(buffer) => &buffer.0,
        }
    }
}

impl Store {
    /// Copies a value out. Private ephemeral pools lose it by that.
    ///
    /// # Errors
    /// [`Error::NoPool`]; [`Error::Corrupt`] and [`Error::Io`] when a persistent value cannot be
    /// had back from a lower tier.
    pub fn get(&self, pool: PoolId, key: Key, value: &mut [u8]) -> Result<Get, Error> {
        let length = match self.hold(pool, key, value.len())? {
            Held::Miss => return Ok(Get::Miss),
            Held::Short(length) => return Ok(Get::Short(length)),
            Held::Page(page) => {
                value[..PAGE_BYTES].copy_from_slice(&*page);
                PAGE_BYTES
            }
            Held::Small(cell) => {
                value[..cell.len()].copy_from_slice(&cell);
                cell.len()
            }
            Held::Packed(cell) => {
                let (page, _) = value.split_first_chunk_mut().expect("room was checked");
                if !unpack(&cell, page) {
                    return Err(Error::Corrupt);
                }
                PAGE_BYTES
            }
            Held::Uniform(word) => {
                fill_word(&mut value[..PAGE_BYTES], word);
                PAGE_BYTES
            }
        };
        Ok(Get::Hit(length))
    }

    /// A page where it lies: in its frame, or unpacked or read into `scratch`, or a page of zeros.
    /// `None` is a miss. Private ephemeral pools lose the value by that.
    ///
    /// # Errors
    /// As for [`Store::get`], and [`Error::NotAPage`] for a value of another length.
    pub fn read_page<'a>(
        &'a self,
        pool: PoolId,
        key: Key,
        scratch: &'a mut PageBuf,
    ) -> Result<Option<PageRef<'a>>, Error> {
        let source = match self.hold(pool, key, PAGE_BYTES)? {
            Held::Miss => return Ok(None),
            Held::Short(length) => return Err(Error::NotAPage(length)),
            Held::Page(page) => Source::Frame(page),
            Held::Small(cell) => return Err(Error::NotAPage(cell.len())),
            Held::Packed(cell) => {
                if !unpack(&cell, &mut scratch.0) {
                    return Err(Error::Corrupt);
                }
                Source::Buffer(scratch)
            }
            Held::Uniform(0) => Source::Buffer(&ZERO),
            Held::Uniform(word) => {
                fill_word(&mut scratch.0, word);
                Source::Buffer(scratch)
            }
        };
        Ok(Some(PageRef(source)))
    }

    /// Looks a value up and keeps it from being freed; `room` is what the reader can take, bytes.
    fn hold(&self, pool: PoolId, key: Key, room: usize) -> Result<Held<'_>, Error> {
        let access = self.access(pool).ok_or(Error::NoPool)?;
        let at = Position::new(access.pool, key, self.seed);
        let mut index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return Err(Error::NoPool);
        }
        let counters = self.client_shard(access.client, at.shard);
        counters.gets.add_guarded(1);
        let Some((leaf, slot)) = self.find(&index, &at) else { return Ok(Held::Miss) };
        let length = self.length(slot);
        if length > room {
            return Ok(Held::Short(length));
        }
        counters.hits.add_guarded(1);
        if access.consumes() {
            // The entry's reference becomes the reader's.
            let removed = self.remove(&mut index, at.shard, leaf, at.index, true);
            drop(index);
            let held = self.adopt(slot);
            self.finish_moved(removed);
            return Ok(held);
        }
        if access.ephemeral {
            self.unlist(slot, at.shard, true);
            let listed = self.list(slot, at.shard, leaf, at.index, true);
            debug_assert_eq!(listed, slot);
        }
        Ok(self.pin(slot))
    }
}

impl Store {
    /// Bytes of a slot's value.
    pub(crate) fn length(&self, slot: Slot) -> usize {
        match slot.place() {
            Place::Small { length, .. } => usize::from(length),
            _ => PAGE_BYTES,
        }
    }

    /// Adds a reader's reference to a slot's value. Called under the shard's lock.
    fn pin(&self, slot: Slot) -> Held<'_> {
        let tag = self.clients[usize::from(slot.owner())].tag();
        match slot.place() {
            Place::Raw { frame } => self.arena.pin(frame, tag).map_or(Held::Miss, Held::Page),
            _ => Held::Miss,
        }
    }

    /// Makes the reference of a slot that is gone the reader's.
    fn adopt(&self, slot: Slot) -> Held<'_> {
        let tag = self.clients[usize::from(slot.owner())].tag();
        match slot.place() {
            Place::Raw { frame } => Held::Page(self.arena.adopt(frame, tag)),
            _ => Held::Miss,
        }
    }
}
