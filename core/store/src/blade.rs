//! The store's use of the blade tier: moves pages to another process or host and back.

use spillway_tiers::Backing;
use spillway_tiers::blade::{Blade, BladePlace, READ_PAGES_MAX, Read, ReadError, SEALED_BYTES_MAX};
use spillway_tiers::lz4::unpack;
use spillway_tiers::{PageBuf, WRITE_PAGES_MAX};
use spillway_types::{Key, PAGE_BYTES, PoolId};

use crate::error::Error;
use crate::get::{PageRef, PinnedValue, Tier};
use crate::store::Store;

/// Frames that puts without room-making need at a time: two windows of a pager.
const DRAINING_FRAMES: u64 = 128;

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Corrupt => Self::Corrupt,
            ReadError::Gone => Self::Gone,
        }
    }
}

impl Store {
    /// Gives the store a blade, to which the coldest pages go before they go to files.
    ///
    /// # Panics
    /// For a store in memfds: after a restart, its pages on the blade would be unknown.
    #[must_use]
    pub fn with_blade(mut self, blade: Blade) -> Self {
        assert_eq!(self.config.backing, Backing::Anonymous, "a kept store has no blade");
        self.blade = Some(blade);
        self
    }

    /// The blade tier, if there is one.
    pub const fn blade(&self) -> Option<&Blade> {
        self.blade.as_ref()
    }

    /// Whether memory is nearly full while the blade accepts pages: then a put that does not make
    /// room itself should wait for a task that calls [`Store::demote`].
    pub fn is_draining(&self) -> bool {
        let Some(blade) = &self.blade else { return false };
        self.arena.frames_left() < DRAINING_FRAMES && blade.takes()
    }

    /// Whether the copy of a page that was just read from a tier should stay there, so that the page
    /// can leave without a transfer if it is clean. Call it once for each page read: a page from the
    /// disk gets the space that a page from the blade has left.
    ///
    /// A copy on an almost full blade takes the space of a page that then goes to the disk. A page
    /// from the disk goes to the blade next time if that has space: it leaves as if it were dirty.
    pub fn copy_pays(&self, tier: Tier) -> bool {
        let Some(blade) = &self.blade else { return true };
        match (tier, blade.is_short()) {
            (Tier::Memory, _) | (Tier::Blade, false) => true,
            (Tier::Blade, true) => {
                blade.leave_room();
                false
            }
            (Tier::Disk, true) => !blade.take_room(),
            (Tier::Disk, false) => !blade.takes(),
        }
    }

    /// Reads a page from the blade, unless it has moved elsewhere meanwhile. Waits for a blade that does
    /// not answer, up to the loss timeout.
    #[cold]
    #[inline(never)]
    pub(crate) fn page_from_blade<'a>(
        &'a self,
        place: BladePlace,
        pool: PoolId,
        key: Key,
        scratch: &'a mut PageBuf,
    ) -> Result<Option<PageRef<'a>>, Error> {
        let blade = self.blade.as_ref().ok_or(Error::Gone)?;
        let mut sealed = [0; SEALED_BYTES_MAX];
        let mut read = Read { place, room: &mut sealed, outcome: Err(ReadError::Gone) };
        blade.read_demanded(&mut read);
        if let Err(error) = read.outcome {
            return match self.hold(pool, key, PAGE_BYTES, false)? {
                PinnedValue::Blade(still) if still == place => Err(error.into()),
                held => self.page_of(held, pool, key, scratch),
            };
        }
        if !open_page(place, read.room, scratch) {
            return Err(Error::Corrupt);
        }
        Ok(Some(PageRef::from_blade(scratch)))
    }

    /// Reads pages, those on the blade several at a time. Returns how many were read before the
    /// first failure, which [`Store::read_page`] explains, and for how many of them
    /// [`Store::copy_pays`]. It does not wait for a blade that is down: not all of them may be needed.
    ///
    /// # Panics
    /// If there is not a page of buffer for each key.
    pub fn read_run(&self, pool: PoolId, keys: &[Key], pages: &mut [PageBuf]) -> (usize, usize) {
        let pages = &mut pages[..keys.len()];
        let (mut read, mut stay) = (0, 0);
        for keys in keys.chunks(READ_PAGES_MAX) {
            let tiers = self.read_some(pool, keys, &mut pages[read..read + keys.len()]);
            let came = tiers.iter().map_while(|tier| *tier);
            let (before, whole) = (read, keys.len());
            for tier in came {
                read += 1;
                stay += usize::from(self.copy_pays(tier));
            }
            if read < before + whole {
                break;
            }
        }
        (read, stay)
    }

    /// [`Store::read_run`] for as many pages as the blade returns at once; returns the tiers of the
    /// pages read.
    fn read_some(
        &self,
        pool: PoolId,
        keys: &[Key],
        pages: &mut [PageBuf],
    ) -> [Option<Tier>; READ_PAGES_MAX] {
        let mut places = [None; READ_PAGES_MAX];
        let mut come = [None; READ_PAGES_MAX];
        for (at, (&key, page)) in keys.iter().zip(pages.iter_mut()).enumerate() {
            match self.hold(pool, key, PAGE_BYTES, true) {
                Ok(PinnedValue::Blade(place)) => places[at] = Some(place),
                Ok(held) => come[at] = self.copy_page(held, pool, key, page),
                Err(_) => {}
            }
        }
        let mut sealed = [[0; SEALED_BYTES_MAX]; READ_PAGES_MAX];
        let mut count = 0;
        let mut placed = places.iter().flatten();
        let mut reads = sealed.each_mut().map(|room| {
            let place = placed.next().copied();
            count += usize::from(place.is_some());
            let place = place.unwrap_or(BladePlace { object: 0, index: 0, length: 0 });
            Read { place, room, outcome: Err(ReadError::Gone) }
        });
        if let Some(blade) = self.blade.as_ref().filter(|_| count > 0) {
            blade.read(&mut reads[..count]);
        }
        let mut reads = reads.into_iter();
        for (at, place) in places.iter().enumerate() {
            if place.is_some()
                && let Some(read) = reads.next()
            {
                let came = read.outcome.is_ok() && open_page(read.place, read.room, &mut pages[at]);
                come[at] = came.then_some(Tier::Blade);
            }
        }
        come
    }

    fn copy_page(
        &self,
        held: PinnedValue<'_>,
        pool: PoolId,
        key: Key,
        page: &mut PageBuf,
    ) -> Option<Tier> {
        let mut scratch = PageBuf::ZERO;
        let found = self.page_of(held, pool, key, &mut scratch).ok().flatten()?;
        page.0.copy_from_slice(&*found);
        Some(found.tier())
    }

    /// Sends `contents` to the blade. Returns a place for each page that is safe there.
    pub(crate) fn send_to_blade(
        &self,
        contents: &[&[u8]],
        places: &mut [Option<BladePlace>; WRITE_PAGES_MAX],
    ) {
        if let Some(blade) = &self.blade {
            blade.write(contents, places, self.budget());
        }
    }
}

/// Copies or unpacks an opened value.
fn open_page(place: BladePlace, value: &[u8; SEALED_BYTES_MAX], page: &mut PageBuf) -> bool {
    let content = &value[..usize::from(place.length)];
    if content.len() == PAGE_BYTES {
        page.0.copy_from_slice(content);
        return true;
    }
    unpack(content, &mut page.0)
}
