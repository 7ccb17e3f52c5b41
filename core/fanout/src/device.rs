//! The device itself.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};

use spillway_block::{BlockSize, Data, Device, Extent, Geometry, Request, STATUS_PAGES_MAX, parts};
use spillway_types::PAGE_BYTES;

use crate::counters::{Counters, Tally};
use crate::error::Error;
use crate::holder::Holder;
use crate::lender::BATCH_PAGES;
use crate::locks::Locks;
use crate::loss::{Loss, Losses};
use crate::scratch::Pool;
use crate::seal::Cipher;
use crate::settings::Settings;
use crate::slabs::{COPIES, Place, Slab, Standing};
use crate::table::Table;

/// A block device whose slabs lie with holders; see the crate.
///
/// Requests go through `&self`, from any number of threads. It ends when it is dropped; holders go when nobody else has
/// them.
#[derive(Debug)]
pub struct FanOut {
    core: Arc<Core>,
    teller: Option<JoinHandle<()>>,
}

/// What the device's threads share.
#[derive(Debug)]
pub(crate) struct Core {
    pub settings: Settings,
    geometry: Geometry,
    /// Whoever carries something out reads it all the while; so whoever writes it knows that nothing is under way.
    slabs: RwLock<Box<[Slab]>>,
    pub locks: Locks,
    pub table: Table,
    pub cipher: Cipher,
    pub tally: Tally,
    pub scratches: Pool,
    pub losses: Losses,
    /// Held to mark a copy as lost, so that no two threads give up the two copies of a slab at the same time.
    pub losing: Mutex<()>,
}

impl Core {
    pub fn slabs(&self) -> RwLockReadGuard<'_, Box<[Slab]>> {
        self.slabs.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To change which places there are. Waits until nothing is under way, and nothing begins meanwhile.
    pub fn slabs_alone(&self) -> RwLockWriteGuard<'_, Box<[Slab]>> {
        self.slabs.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub const fn pages_per_slab(&self) -> u64 {
        self.settings.slab_bytes / PAGE_BYTES as u64
    }

    pub fn check(&self, offset: u64, bytes: u64) -> Result<(), spillway_block::Error> {
        let end = offset.checked_add(bytes).ok_or(spillway_block::Error::Range)?;
        if end > self.geometry.bytes { Err(spillway_block::Error::Range) } else { Ok(()) }
    }
}

impl FanOut {
    /// Makes a device of zeros out of slabs, each with one place or two. `uuid` names this generation of the device,
    /// see [`fresh_uuid`](spillway_block::fresh_uuid). `lost` is told of each holder that fails, on a thread off the
    /// way of any page; the line is logged besides.
    ///
    /// # Errors
    /// [`Error::SlabBytes`], [`Error::NoPlace`], [`Error::SamePlace`]; [`Error::Io`] when the kernel has no thread or
    /// no random bytes.
    pub fn open(
        settings: Settings,
        uuid: u128,
        slabs: Vec<[Option<Place>; COPIES]>,
        lost: impl Fn(Loss) + Send + 'static,
    ) -> Result<Self, Error> {
        settings.check()?;
        check_places(&slabs)?;
        let bytes = settings.slab_bytes * slabs.len() as u64;
        let core = Arc::new(Core {
            geometry: Geometry { bytes, block_size: BlockSize::B4096, uuid },
            slabs: RwLock::new(slabs.into_iter().map(Slab::new).collect()),
            locks: Locks::new(),
            table: Table::new(bytes / PAGE_BYTES as u64),
            cipher: Cipher::fresh()?,
            tally: Tally::default(),
            scratches: Pool::new(settings.threads_max),
            losses: Losses::new(),
            losing: Mutex::new(()),
            settings,
        });
        let teller = thread::Builder::new().name("fanout-tell".into());
        let teller = teller.spawn({
            let core = Arc::clone(&core);
            move || {
                while let Some(loss) = core.losses.next() {
                    tracing::error!("{loss}");
                    lost(loss);
                }
            }
        })?;
        Ok(Self { core, teller: Some(teller) })
    }

    /// Number of slabs.
    pub fn slabs(&self) -> u32 {
        self.core.slabs().len() as u32
    }

    /// How the copies of a slab stand: the primary, which is read, and the second.
    ///
    /// # Errors
    /// [`Error::NoSlab`].
    pub fn places(&self, slab: u32) -> Result<[Option<Standing>; COPIES], Error> {
        let slabs = self.core.slabs();
        let found = slabs.get(slab as usize).ok_or(Error::NoSlab { slab, copy: 0 })?;
        Ok(core::array::from_fn(|copy| found.standing(copy)))
    }

    /// Copies a slab to a new place, under traffic, and then uses that as its copy 0 (the primary) or 1 in place of the
    /// one that was there, if any. When this returns, nothing is on its way to the old place on behalf of this slab but
    /// what had timed out there; see [`Self::forget`]. It blocks; slabs may be moved at the same time by several
    /// threads. A slab without any copy takes pages again from then on; those that it had are lost.
    ///
    /// # Errors
    /// [`Error::NoSlab`], [`Error::SamePlace`], [`Error::Moving`]; [`Error::PlaceLost`] and [`Error::Unreadable`],
    /// after which the slab stays where it was.
    pub fn place(&self, slab: u32, copy: usize, place: Place) -> Result<(), Error> {
        self.core.move_slab(slab, copy, place)
    }

    /// Stops using a holder: its copies are dropped, last ones too, and what is being copied there fails. When this
    /// returns, nothing is on its way there, and nothing will be: the loan can be given back.
    pub fn forget(&self, holder: &Arc<Holder>) {
        self.core.forget(holder);
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        self.core.tally.counters()
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        self.core.losses.stop();
        if let Some(teller) = self.teller.take() {
            // It ends without a panic, which would end the program.
            let _ = teller.join();
        }
    }
}

fn check_places(slabs: &[[Option<Place>; COPIES]]) -> Result<(), Error> {
    if slabs.is_empty() {
        return Err(Error::NoPlace(0));
    }
    for (number, places) in (0..).zip(slabs) {
        match places {
            [None, None] => return Err(Error::NoPlace(number)),
            [Some(first), Some(second)] if first.is_with(second) => {
                return Err(Error::SamePlace(number));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Device for FanOut {
    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), spillway_block::Error> {
        self.core.check(offset, data.len() as u64)?;
        self.one(Request::new(offset, Data::Read(data)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), spillway_block::Error> {
        self.core.check(offset, data.len() as u64)?;
        self.one(Request::new(offset, Data::Write(data)))
    }

    fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), spillway_block::Error> {
        self.core.write_zeroes(offset, bytes)
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), spillway_block::Error> {
        self.core.deallocate(offset, bytes)
    }

    /// Nothing: a write has reached the lenders' copies and the buffer before the file when it is answered, and what is in the file
    /// means nothing to a later start, whose key is another.
    fn flush(&self) -> Result<(), spillway_block::Error> {
        Ok(())
    }

    fn status(
        &self,
        offset: u64,
        bytes: u64,
        extents: &mut [Extent],
    ) -> Result<usize, spillway_block::Error> {
        self.core.check(offset, bytes)?;
        let mut filled = 0;
        for part in parts(offset, bytes).take(STATUS_PAGES_MAX as usize) {
            let stored = self.core.table.is_stored(part.page);
            let bytes = (part.end - part.start) as u64;
            if filled != 0 && extents[filled - 1].stored == stored {
                extents[filled - 1].bytes += bytes;
            } else if filled < extents.len() {
                extents[filled] = Extent { bytes, stored };
                filled += 1;
            } else {
                break;
            }
        }
        Ok(filled)
    }

    fn batch_max(&self) -> usize {
        BATCH_PAGES
    }

    fn batch(&self, requests: &mut [Request<'_>]) {
        self.core.batch(requests);
    }
}

impl FanOut {
    fn one(&self, request: Request<'_>) -> Result<(), spillway_block::Error> {
        let page = request.offset / PAGE_BYTES as u64;
        let mut requests = [request];
        self.core.batch(&mut requests);
        if requests[0].failed.get() { Err(spillway_block::Error::NoCopy(page)) } else { Ok(()) }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(io::Error::from(errno))
    }
}
