//! A block device: a range of bytes over a pool, most often a reserved one.

use std::sync::Arc;

use spillway_store::{PageBuf, Store};
use spillway_types::{ClientId, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Put};

use crate::error::Error;
use crate::extent::{Extent, fill_extents};
use crate::geometry::Geometry;
use crate::parts::{Part, parts, whole_pages};
use crate::stripes::Stripes;

/// log2 of the pages of an object: page `n` of the device has the key of object `n >> 32` and index
/// `n & 0xffff_ffff`, for which the store has set room aside.
const OBJECT_SHIFT: u32 = 32;
/// A block device. Requests go through `&self`, from any number of threads. A write is visible to
/// every read that begins after it returned. Of writes that overlap in time and place, either may
/// win, byte by byte; bytes that neither wrote are never touched.
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
    /// Makes a device of zeros in a pool of its own, with all its memory set aside.
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Store`] when the store has no room for it.
    pub fn create(store: Arc<Store>, client: ClientId, geometry: Geometry) -> Result<Self, Error> {
        check_size(geometry.bytes)?;
        let pages = geometry.bytes / PAGE_BYTES as u64;
        let pool = store.create_reserved_pool(client, PoolSpec::PERSISTENT, pages)?;
        Self::open(store, pool, geometry)
    }

    /// Makes a device of zeros whose pages are kept as any others: they may be packed, and lie on the
    /// store's disk. A write is refused when the store is full or the client at its target.
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

    /// Takes up a device that lies in `pool`, made by [`Self::create`] or
    /// [`Self::create_unreserved`] with the same geometry.
    ///
    /// # Errors
    /// [`Error::Size`].
    pub fn open(store: Arc<Store>, pool: PoolId, geometry: Geometry) -> Result<Self, Error> {
        check_size(geometry.bytes)?;
        Ok(Self { store, pool, geometry, stripes: Stripes::new() })
    }

    /// The pool that it lies in.
    pub const fn pool(&self) -> PoolId {
        self.pool
    }

    /// What it looks like from outside.
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.geometry.bytes
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::NotAPage`], [`Error::Store`].
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
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

    fn read_whole(&self, page: u64, target: &mut [u8]) -> Result<(), Error> {
        match self.store.get(self.pool, key_of(page), target)? {
            Get::Hit(PAGE_BYTES) => {}
            Get::Miss => target.fill(0),
            Get::Hit(length) | Get::Short(length) => return Err(Error::NotAPage(length)),
        }
        Ok(())
    }

    /// Shows a page where it lies.
    fn with_page<T>(
        &self,
        page: u64,
        look: impl FnOnce(&[u8; PAGE_BYTES]) -> T,
    ) -> Result<T, Error> {
        let mut buffer = PageBuf::ZERO;
        Ok(match self.store.read_page(self.pool, key_of(page), &mut buffer)? {
            Some(page) => look(&page),
            None => look(&[0; PAGE_BYTES]),
        })
    }

    /// Stores bytes.
    ///
    /// # Errors
    /// [`Error::Range`], before anything is written; [`Error::Refused`], [`Error::NotAPage`] and
    /// [`Error::Store`], after which any part of the range may be written, and a page that was
    /// refused reads as zeros.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
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

    fn put(&self, page: u64, data: &[u8]) -> Result<(), Error> {
        match self.store.put(self.pool, key_of(page), data) {
            Put::Stored => Ok(()),
            Put::Refused(reason) => Err(Error::Refused(reason)),
        }
    }

    /// Reads a page, changes a part of it and writes it back, as one step.
    fn change(&self, part: Part, change: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        let _alone = self.stripes.alone(part.page);
        let mut buffer = PageBuf::ZERO;
        self.read_whole(part.page, &mut buffer.0)?;
        change(&mut buffer.0[part.start..part.end]);
        self.put(part.page, &buffer.0)
    }

    /// Makes a range read as zeros, and gives the memory of its whole pages back to the reservation.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.geometry.check(offset, bytes)?;
        let end = offset + bytes;
        let whole = whole_pages(offset, end);
        let inner_start = (whole.start * PAGE_BYTES as u64).min(end);
        let inner_end = (whole.end * PAGE_BYTES as u64).min(end).max(inner_start);
        for part in parts(offset, inner_start - offset).chain(parts(inner_end, end - inner_end)) {
            // What is not there is zeros already.
            if self.store.exists(self.pool, key_of(part.page)) {
                self.change(part, |bytes| bytes.fill(0))?;
            }
        }
        self.drop_pages(whole);
        Ok(())
    }

    /// Gives the memory of the whole pages in a range back to the reservation; they read as zeros.
    /// Parts of pages at its ends stay as they are, as NBD's trim and NVMe's deallocate allow.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.geometry.check(offset, bytes)?;
        self.drop_pages(whole_pages(offset, offset + bytes));
        Ok(())
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

    /// Makes completed writes as lasting as they get. They last as long as the store from the
    /// moment they return, so this only looks whether the device is still there.
    ///
    /// # Errors
    /// [`Error::Store`] when its pool is gone.
    pub fn flush(&self) -> Result<(), Error> {
        // Nothing fits an empty buffer, so nothing is copied.
        self.store.get(self.pool, key_of(0), &mut [])?;
        Ok(())
    }

    /// Whether the device holds `data` at `offset`.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn compare(&self, offset: u64, data: &[u8]) -> Result<bool, Error> {
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

    /// Says what of a range is stored, page by page: fills `extents` from the front, neighbours
    /// unlike each other, and gives how many it filled. They begin at `offset` and may end before
    /// the range does: when `extents` is full, or after 65,536 pages.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn status(&self, offset: u64, bytes: u64, extents: &mut [Extent]) -> Result<usize, Error> {
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
