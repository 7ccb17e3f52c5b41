//! A block device: a range of bytes over a pool, most often a reserved one.

use std::sync::Arc;

use spillway_block::{
    Device, Error as BlockError, Extent, Geometry, Part, fill_extents, parts, whole_pages,
};
use spillway_store::{PageBuf, Store};
use spillway_types::{ClientId, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Put};

use crate::error::{Error, of_store};
use crate::stripes::Stripes;

/// log2 of the pages of an object. Page `n` of the device has the key with object `n >> 32` and index
/// `n & 0xffff_ffff`.
const OBJECT_SHIFT: u32 = 32;

/// A block device over the store. Any number of threads may send requests. A write is visible to every read that
/// begins after the write has returned. When two writes overlap in time and range, each shared byte comes from either
/// of them. Other bytes never change.
#[derive(Debug)]
pub struct BlockDevice {
    store: Arc<Store>,
    pool: PoolId,
    geometry: Geometry,
    stripes: Stripes,
}

const fn key_of(page: u64) -> Key {
    Key::new(page >> OBJECT_SHIFT, page as u32)
}

impl BlockDevice {
    /// Creates a device of zeros in a pool of its own, and reserves memory for all its pages.
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Store`], also when the store has too little free memory.
    pub fn create(store: Arc<Store>, client: ClientId, geometry: Geometry) -> Result<Self, Error> {
        check_size(geometry.bytes)?;
        let pages = geometry.bytes / PAGE_BYTES as u64;
        let pool = store.create_reserved_pool(client, PoolSpec::PERSISTENT, pages)?;
        Self::open(store, pool, geometry)
    }

    /// Creates a device of zeros without a reservation. The store may compress its pages or move them to its disk. It
    /// refuses a write when it is full or the client is at its target.
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Store`].
    pub fn create_unreserved(
        store: Arc<Store>,
        client: ClientId,
        geometry: Geometry,
    ) -> Result<Self, Error> {
        check_size(geometry.bytes)?;
        let pool = store.create_pool(client, PoolSpec::PERSISTENT)?;
        Self::open(store, pool, geometry)
    }

    /// Opens the device in `pool`, which [`Self::create`] or [`Self::create_unreserved`] created with the same
    /// geometry.
    ///
    /// # Errors
    /// [`Error::Size`].
    pub fn open(store: Arc<Store>, pool: PoolId, geometry: Geometry) -> Result<Self, Error> {
        check_size(geometry.bytes)?;
        Ok(Self { store, pool, geometry, stripes: Stripes::new() })
    }

    /// The pool that holds its pages.
    pub const fn pool(&self) -> PoolId {
        self.pool
    }

    fn read_whole(&self, page: u64, target: &mut [u8]) -> Result<(), BlockError> {
        match self.store.get(self.pool, key_of(page), target).map_err(of_store)? {
            Get::Hit(PAGE_BYTES) => {}
            Get::Miss => target.fill(0),
            Get::Hit(length) | Get::Short(length) => return Err(BlockError::NotAPage(length)),
        }
        Ok(())
    }

    /// Calls `look` with a page's bytes, without a copy where the store can lend them.
    fn with_page<T>(
        &self,
        page: u64,
        look: impl FnOnce(&[u8; PAGE_BYTES]) -> T,
    ) -> Result<T, BlockError> {
        let mut buffer = PageBuf::ZERO;
        let stored =
            self.store.read_page(self.pool, key_of(page), &mut buffer).map_err(of_store)?;
        Ok(match stored {
            Some(page) => look(&page),
            None => look(&[0; PAGE_BYTES]),
        })
    }

    fn put(&self, page: u64, data: &[u8]) -> Result<(), BlockError> {
        match self.store.put(self.pool, key_of(page), data) {
            Put::Stored => Ok(()),
            Put::Refused(reason) => Err(BlockError::Refused(reason)),
        }
    }

    /// Changes a part of a page: reads the page, changes it and writes it back, under the page's exclusive lock.
    fn change(&self, part: Part, change: impl FnOnce(&mut [u8])) -> Result<(), BlockError> {
        let _alone = self.stripes.alone(part.page);
        let mut buffer = PageBuf::ZERO;
        self.read_whole(part.page, &mut buffer.0)?;
        change(&mut buffer.0[part.start..part.end]);
        self.put(part.page, &buffer.0)
    }

    fn drop_pages(&self, pages: core::ops::Range<u64>) {
        let all = self.geometry.bytes / PAGE_BYTES as u64;
        if pages == (0..all) {
            let _shared = self.stripes.all();
            for object in 0..=(all - 1) >> OBJECT_SHIFT {
                self.store.flush_object(self.pool, object);
            }
            return;
        }
        for page in pages {
            let _shared = self.stripes.shared(page);
            self.store.flush(self.pool, key_of(page));
        }
    }
}

impl Device for BlockDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        self.geometry.check(offset, data.len() as u64)?;
        let mut rest = data;
        for part in parts(offset, rest.len() as u64) {
            let (target, after) = rest.split_at_mut(part.end - part.start);
            rest = after;
            if part.is_whole() {
                self.read_whole(part.page, target)?;
            } else {
                self.with_page(part.page, |page| {
                    target.copy_from_slice(&page[part.start..part.end]);
                })?;
            }
        }
        Ok(())
    }

    /// Stores bytes. A page that the store refused reads as zeros afterwards.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.geometry.check(offset, data.len() as u64)?;
        let mut rest = data;
        for part in parts(offset, data.len() as u64) {
            let (source, after) = rest.split_at(part.end - part.start);
            rest = after;
            if part.is_whole() {
                let _shared = self.stripes.shared(part.page);
                self.put(part.page, source)?;
            } else {
                self.change(part, |bytes| bytes.copy_from_slice(source))?;
            }
        }
        Ok(())
    }

    /// Makes a range read as zeros, and gives the memory of its whole pages back to the reservation.
    fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.geometry.check(offset, bytes)?;
        let end = offset + bytes;
        let whole = whole_pages(offset, end);
        let inner_start = (whole.start * PAGE_BYTES as u64).min(end);
        let inner_end = (whole.end * PAGE_BYTES as u64).min(end).max(inner_start);
        for part in parts(offset, inner_start - offset).chain(parts(inner_end, end - inner_end)) {
            // A page that is not stored reads as zeros already.
            if self.store.exists(self.pool, key_of(part.page)) {
                self.change(part, |bytes| bytes.fill(0))?;
            }
        }
        self.drop_pages(whole);
        Ok(())
    }

    /// Gives the memory of the whole pages in a range back to the reservation.
    fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.geometry.check(offset, bytes)?;
        self.drop_pages(whole_pages(offset, offset + bytes));
        Ok(())
    }

    /// Checks that the device still exists. There is nothing to flush: a completed write lasts as long as the store.
    fn flush(&self) -> Result<(), BlockError> {
        // No value fits an empty buffer, so the store copies nothing.
        self.store.get(self.pool, key_of(0), &mut []).map_err(of_store)?;
        Ok(())
    }

    /// Compares without copying pages that the store can lend.
    fn compare(&self, offset: u64, data: &[u8]) -> Result<bool, BlockError> {
        self.geometry.check(offset, data.len() as u64)?;
        let mut rest = data;
        for part in parts(offset, data.len() as u64) {
            let (expected, after) = rest.split_at(part.end - part.start);
            rest = after;
            if !self.with_page(part.page, |page| page[part.start..part.end] == *expected)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn status(&self, offset: u64, bytes: u64, extents: &mut [Extent]) -> Result<usize, BlockError> {
        self.geometry.check(offset, bytes)?;
        let is_stored = |page| self.store.exists(self.pool, key_of(page));
        Ok(fill_extents(offset, bytes, extents, is_stored))
    }
}

fn check_size(bytes: u64) -> Result<(), Error> {
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES as u64) {
        return Err(Error::Size(bytes));
    }
    Ok(())
}
