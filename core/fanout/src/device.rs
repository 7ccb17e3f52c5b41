//! The device and the threads that it starts.

use core::sync::atomic::AtomicU64;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};

use spillway_block::{BlockSize, Data, Device, Extent, Geometry, Request, fill_extents};
use spillway_types::PAGE_BYTES;

use crate::behind::Behind;
use crate::counters::{AtomicCounters, Counters};
use crate::error::Error;
use crate::holder::Holder;
use crate::lender::BATCH_PAGES;
use crate::locks::Locks;
use crate::loss::{Losses, Report};
use crate::mending::Mending;
use crate::scratch::Pool;
use crate::seal::Cipher;
use crate::settings::Settings;
use crate::slabs::{COPIES, Slab, SlabLocation, Standing};
use crate::table::Table;

/// A block device whose slabs lie with holders. See the crate.
///
/// Requests go through `&self`, from any number of threads. Dropping it ends it. A holder ends with
/// its last device.
#[derive(Debug)]
pub struct FanOut {
    core: Arc<Core>,
    notifier: Option<JoinHandle<()>>,
    mender: Option<JoinHandle<()>>,
}

/// What the device's threads share.
#[derive(Debug)]
pub(crate) struct Core {
    pub settings: Settings,
    pub geometry: Geometry,
    /// A thread whose batch has requests with holders holds it for reading, and lets go of it while it waits to try again. So
    /// a thread that holds it for writing knows that no request is with a holder, but for those that are late.
    slabs: RwLock<Box<[Slab]>>,
    pub locks: Locks,
    pub table: Table,
    pub behind: Behind,
    pub mending: Mending,
    /// Batches so far.
    pub batches: AtomicU64,
    pub cipher: Cipher,
    pub counters: AtomicCounters,
    pub scratches: Pool,
    pub losses: Losses,
    /// Held while a copy is marked as lost, so that no two threads give up both copies of a slab at
    /// the same time.
    pub losing: Mutex<()>,
}

impl Core {
    pub fn slabs(&self) -> RwLockReadGuard<'_, Box<[Slab]>> {
        self.slabs.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the slabs to change their places. Waits until no batch has requests with holders; none sends any while it is held.
    pub fn slabs_alone(&self) -> RwLockWriteGuard<'_, Box<[Slab]>> {
        self.slabs.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub const fn pages_per_slab(&self) -> u64 {
        self.settings.slab_bytes / PAGE_BYTES as u64
    }
}

impl FanOut {
    /// Makes a device of zeros out of slabs, each with one place or two. `uuid` names this
    /// generation of the device, see [`fresh_uuid`](spillway_block::fresh_uuid). The notifier, a
    /// thread that serves no pages, calls `told` with each holder that fails, and with each that
    /// answers after requests have waited for it.
    ///
    /// # Errors
    /// [`Error::SlabBytes`], [`Error::NoPlace`], [`Error::SamePlace`]; [`Error::Io`] when the kernel has no thread or
    /// no random bytes.
    pub fn open(
        settings: Settings,
        uuid: u128,
        slabs: Vec<[Option<SlabLocation>; COPIES]>,
        told: impl Fn(Report) + Send + 'static,
    ) -> Result<Self, Error> {
        settings.check()?;
        check_places(&slabs)?;
        let count = slabs.len();
        let bytes = settings.slab_bytes * count as u64;
        let core = Arc::new(Core {
            geometry: Geometry { bytes, block_size: BlockSize::B4096, uuid },
            slabs: RwLock::new(slabs.into_iter().map(Slab::new).collect()),
            locks: Locks::new(),
            table: Table::new(bytes / PAGE_BYTES as u64),
            behind: Behind::new(count, settings.slab_bytes / PAGE_BYTES as u64),
            mending: Mending::default(),
            batches: AtomicU64::new(0),
            cipher: Cipher::fresh()?,
            counters: AtomicCounters::default(),
            scratches: Pool::new(settings.threads_max),
            losses: Losses::new(),
            losing: Mutex::new(()),
            settings,
        });
        let notifier = thread::Builder::new().name("fanout-notify".into());
        let notifier = notifier.spawn({
            let core = Arc::clone(&core);
            move || {
                while let Some(report) = core.losses.next() {
                    told(report);
                }
            }
        })?;
        let mender = thread::Builder::new().name("fanout-mender".into());
        let mender = mender.spawn({
            let core = Arc::clone(&core);
            move || core.mend()
        });
        // An error ends the notifier.
        let mut device = Self { core, notifier: Some(notifier), mender: None };
        device.mender = Some(mender?);
        Ok(device)
    }

    /// Number of slabs.
    pub fn slabs(&self) -> u32 {
        self.core.slabs().len() as u32
    }

    /// The state of a slab's copies: the primary, which is read, and the second.
    ///
    /// # Errors
    /// [`Error::NoSlab`].
    pub fn places(&self, slab: u32) -> Result<[Option<Standing>; COPIES], Error> {
        let slabs = self.core.slabs();
        let found = slabs.get(slab as usize).ok_or(Error::NoSlab { slab, copy: 0 })?;
        let behind = |copy| self.core.behind.count(slab as usize, copy);
        Ok(core::array::from_fn(|copy| found.standing(copy, behind(copy))))
    }

    /// Pages whose last write a slab's copies have missed; zeros for a slab that there is not. It waits for no request
    /// and no move.
    pub fn behind_pages(&self, slab: u32) -> [u32; COPIES] {
        core::array::from_fn(|copy| self.core.behind.count(slab as usize, copy))
    }

    /// Copies a slab to a new place, under traffic, and then uses that place as its copy 0 (the
    /// primary) or 1 instead of the old one, if any. When this returns, no request for this slab is
    /// in flight to the old place, except those that timed out there; see [`Self::forget`]. It
    /// blocks. Several threads may move slabs at the same time. A slab without any copy takes pages
    /// again from then on; the pages that it had are lost.
    ///
    /// # Errors
    /// [`Error::NoSlab`], [`Error::SamePlace`], [`Error::Moving`]; [`Error::PlaceLost`] and [`Error::Unreadable`],
    /// after which the slab stays where it was.
    pub fn place(&self, slab: u32, copy: usize, place: SlabLocation) -> Result<(), Error> {
        self.core.move_slab(slab, copy, place)
    }

    /// Stops using a holder: drops its copies, last copies too, and fails the moves to it. When
    /// this returns, no request to it is in flight, and none will be: the loan can be returned.
    pub fn forget(&self, holder: &Arc<Holder>) {
        self.core.forget(holder);
    }

    /// The counters as they are now.
    pub fn counters(&self) -> Counters {
        self.core.counters.snapshot(self.core.behind.total())
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        self.core.losses.stop();
        self.core.mending.stop();
        for thread in [self.mender.take(), self.notifier.take()].into_iter().flatten() {
            // It ends without a panic: a panic would end the program.
            let _ = thread.join();
        }
    }
}

fn check_places(slabs: &[[Option<SlabLocation>; COPIES]]) -> Result<(), Error> {
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
        self.core.geometry.check(offset, data.len() as u64)?;
        self.one(Request::new(offset, Data::Read(data)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), spillway_block::Error> {
        self.core.geometry.check(offset, data.len() as u64)?;
        self.one(Request::new(offset, Data::Write(data)))
    }

    fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), spillway_block::Error> {
        self.core.write_zeroes(offset, bytes)
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), spillway_block::Error> {
        self.core.deallocate(offset, bytes)
    }

    /// Does nothing. An acknowledged write has reached the lenders' copies and the write-back
    /// buffer. The file's contents are worthless after a restart, because the key is another.
    fn flush(&self) -> Result<(), spillway_block::Error> {
        Ok(())
    }

    fn status(
        &self,
        offset: u64,
        bytes: u64,
        extents: &mut [Extent],
    ) -> Result<usize, spillway_block::Error> {
        self.core.geometry.check(offset, bytes)?;
        let is_stored = |page| self.core.table.is_stored(page);
        Ok(fill_extents(offset, bytes, extents, is_stored))
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
