//! The tiers for pages that leave the guest: a store in memory files that outlive the manager, with its
//! disk, and a blade for pages that the store refuses.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_store::{Get, Key, PoolId, Put, Scratch, Store};
use spillway_tiers::blade::{
    Carried, Carrier, Heard, Parcel, SEALED_BYTES_MAX, Seal, Silence, Silent, Wanted,
};
use spillway_tiers::lz4::{self, PACKED_BYTES};
use spillway_tiers::{PageBuf, WRITE_PAGES_MAX};
use spillway_types::PAGE_BYTES;

use crate::map::{Map, Mark, PageLocation};
use crate::regions::Run;

/// Indexes of an object.
const INDEX_BITS: u32 = 20;
/// A page that compression shrinks by less than this goes to the blade uncompressed.
const GAIN_BYTES: usize = PAGE_BYTES / 4;
/// Stale copies on the blade are removed in batches of this size.
const STALE_MAX: usize = 256;
const LISTED_KEYS: usize = 1024;

/// The tiers of a guest.
#[derive(Debug, Default)]
pub struct Far {
    store: Option<(Store, PoolId)>,
    blade: Option<Blade>,
    scratch: Mutex<Scratch>,
}

/// A blade, and perhaps its mirror.
#[derive(Debug)]
pub struct Blade {
    seal: Seal,
    carriers: Vec<Box<dyn Carrier>>,
    silence: Silence,
    buffers: Mutex<SendBuffers>,
    stale: Mutex<Vec<Key>>,
}

/// The buffers in which pages are packed and sealed before they are sent.
#[derive(Debug)]
struct SendBuffers {
    sealed: Vec<[u8; SEALED_BYTES_MAX]>,
    packed: Box<[u8; PACKED_BYTES]>,
    table: lz4::Table,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn store_key(unit: u64) -> Key {
    Key::new(unit >> INDEX_BITS, (unit & ((1 << INDEX_BITS) - 1)) as u32)
}

/// The blade's key of a handle. A page that leaves again gets a new handle, so a key never names two versions of a
/// page.
const fn blade_key(handle: u64) -> Key {
    Key::new(handle >> INDEX_BITS, (handle & ((1 << INDEX_BITS) - 1)) as u32)
}

impl Far {
    /// The tiers: pages go to the store's pool, and to the blade if the store refuses them.
    pub fn new(store: Option<(Store, PoolId)>, blade: Option<Blade>) -> Self {
        Self { store, blade, scratch: Mutex::new(Scratch::new()) }
    }

    /// Copies the pages of a run to the tiers. Writes the place of each to `places`. A page that no tier accepted keeps
    /// its entry.
    pub fn put(&self, map: &Map, run: Run, pages: &[PageBuf], places: &mut [PageLocation]) {
        if let Some((store, pool)) = &self.store {
            let mut scratch = lock(&self.scratch);
            for ((unit, page), place) in run.units().zip(pages).zip(&mut *places) {
                let put = store.put_compressed(*pool, store_key(unit), &page.0, &mut scratch);
                if put == Put::Stored {
                    *place = PageLocation::Store;
                }
            }
        }
        let Some(blade) = &self.blade else { return };
        let left: Vec<usize> = (0..run.count as usize).filter(|&at| !places[at].is_far()).collect();
        for part in left.chunks(WRITE_PAGES_MAX) {
            blade.put(map, part, pages, places);
        }
    }

    /// Fetches a page; false if it is lost or damaged.
    pub fn fetch(&self, unit: u64, place: PageLocation, page: &mut [u8]) -> bool {
        match (place, &self.store, &self.blade) {
            (PageLocation::Store, Some((store, pool)), _) => {
                matches!(store.get(*pool, store_key(unit), page), Ok(Get::Hit(PAGE_BYTES)))
            }
            (PageLocation::Blade { handle, length }, _, Some(blade)) => {
                blade.fetch(blade_key(handle), usize::from(length), page)
            }
            _ => false,
        }
    }

    /// Removes a stale copy. On the blade this happens later.
    pub fn forget(&self, unit: u64, place: PageLocation) {
        match (place, &self.store, &self.blade) {
            (PageLocation::Store, Some((store, pool)), _) => {
                store.flush(*pool, store_key(unit));
            }
            (PageLocation::Blade { handle, .. }, _, Some(blade)) => blade.forget(blade_key(handle)),
            _ => {}
        }
    }

    /// Removes copies that the map does not name, left by a manager that was killed before it removed them.
    pub fn forget_strays(&self, map: &Map) {
        if let Some((store, pool)) = &self.store {
            forget_in_store(store, *pool, map);
        }
        if let Some(blade) = &self.blade {
            blade.forget_pending(map);
        }
    }

    /// Keeps connections alive and removes stale copies. May take as long as the blade's timeout.
    pub fn tend(&self) {
        if let Some(blade) = &self.blade {
            blade.carriers.iter().for_each(|carrier| carrier.tend());
            blade.flush_stale();
        }
    }

    /// The guest has ended: nobody waits for its pages any more.
    pub fn stop_waiting(&self) {
        if let Some(blade) = &self.blade {
            blade.silence.stop();
        }
    }

    /// Whether the blade does not answer.
    pub fn is_down(&self) -> bool {
        let down = |blade: &Blade| blade.carriers.iter().all(|carrier| carrier.is_down());
        self.blade.as_ref().is_some_and(down)
    }

    /// The reason why the disk last refused pages; cleared by the call.
    pub fn take_disk_error(&self) -> Option<String> {
        let (store, _) = self.store.as_ref()?;
        store.take_disk_error().map(|errno| errno.to_string())
    }
}

/// Removes the store's copies of pages that the map places elsewhere.
fn forget_in_store(store: &Store, pool: PoolId, map: &Map) {
    let mut from = None;
    let mut keys = vec![Key::new(0, 0); LISTED_KEYS];
    loop {
        let Ok(listed) = store.list_keys(pool, from, &mut keys) else { return };
        for key in &keys[..listed] {
            let unit = key.object << INDEX_BITS | u64::from(key.index);
            if unit >= map.units() || map.place(unit) != PageLocation::Store {
                store.flush(pool, *key);
            }
        }
        if listed < keys.len() {
            return;
        }
        from = keys.last().copied();
    }
}

impl Blade {
    /// A blade through the first carrier, and its mirror, if any, through the second.
    pub fn new(seal: Seal, carriers: Vec<Box<dyn Carrier>>) -> Self {
        let sealed = vec![[0; SEALED_BYTES_MAX]; WRITE_PAGES_MAX];
        let packed = Box::new([0; PACKED_BYTES]);
        let buffers = Mutex::new(SendBuffers { sealed, packed, table: lz4::Table::default() });
        let silence = Silence::new(Duration::ZERO);
        Self { seal, carriers, silence, buffers, stale: Mutex::default() }
    }

    /// Sets for how long a blade or mirror may be down before the pages that only it may have count as
    /// lost.
    #[must_use]
    pub fn with_loss_timeout(self, timeout: Duration) -> Self {
        Self { silence: Silence::new(timeout), ..self }
    }

    /// Sends the pages at the indexes `which`. A page is safe if blade and mirror have it, or one of them while the
    /// other is down.
    fn put(&self, map: &Map, which: &[usize], pages: &[PageBuf], places: &mut [PageLocation]) {
        let mut buffers = lock(&self.buffers);
        let SendBuffers { sealed, packed, table } = &mut *buffers;
        let first = map.take_handles(which.len() as u64);
        let lengths: Vec<(usize, usize)> = (first..)
            .zip(which)
            .zip(sealed.iter_mut())
            .map(|((handle, &at), room)| {
                let length = pack_into(&pages[at], room, packed, table);
                (length, self.seal.seal(blade_key(handle), room, length))
            })
            .collect();
        let parcels: Vec<Parcel<'_>> = (first..)
            .zip(sealed.iter())
            .zip(&lengths)
            .map(|((handle, room), &(_, sealed))| Parcel {
                key: blade_key(handle),
                value: &room[..sealed],
            })
            .collect();
        let safe = self.send(&parcels);
        for ((handle, &at), (&(length, _), safe)) in
            (first..).zip(which).zip(lengths.iter().zip(safe))
        {
            if safe {
                places[at] = PageLocation::Blade { handle, length: length as u16 };
            } else {
                self.forget(blade_key(handle));
            }
        }
    }

    fn send(&self, parcels: &[Parcel<'_>]) -> Vec<bool> {
        let mut copies = vec![0; parcels.len()];
        let mut refused = vec![false; parcels.len()];
        for carrier in self.carriers.iter().filter(|carrier| !carrier.is_down()) {
            let mut outcomes = vec![Carried::Lost; parcels.len()];
            carrier.put(parcels, &mut outcomes);
            let down = carrier.is_down();
            for (at, outcome) in outcomes.into_iter().enumerate() {
                match outcome {
                    Carried::Done => copies[at] += 1,
                    Carried::Lost if down => {}
                    _ => refused[at] = true,
                }
            }
        }
        copies.into_iter().zip(refused).map(|(copies, refused)| copies > 0 && !refused).collect()
    }

    fn fetch(&self, key: Key, length: usize, page: &mut [u8]) -> bool {
        let mut room = [0; SEALED_BYTES_MAX];
        let sealed = length + self.seal.added_bytes();
        if sealed > room.len() || page.len() != PAGE_BYTES {
            return false;
        }
        let mut came = false;
        let mut ask = |carrier: &dyn Carrier, patient| {
            let heard = self.ask(carrier, key, &mut room[..sealed], patient, page);
            came |= heard == Heard::All;
            heard
        };
        let mut silent: Silent<'_> = [None; 2];
        for (at, (carrier, silent)) in self.carriers.iter().zip(&mut silent).enumerate() {
            // There is no alternative after the last one, so wait for the timeout.
            match ask(&**carrier, at + 1 == self.carriers.len()) {
                Heard::All => return true,
                Heard::NotAll => {}
                Heard::Silence => *silent = Some(&**carrier),
            }
        }
        self.silence.wait(silent, |carrier| ask(carrier, false));
        came
    }

    /// Asks blade or mirror for a page.
    fn ask(
        &self,
        carrier: &dyn Carrier,
        key: Key,
        room: &mut [u8],
        patient: bool,
        page: &mut [u8],
    ) -> Heard {
        let mut wanted = [Wanted { key, room, outcome: Carried::Lost }];
        carrier.get(&mut wanted, patient);
        let [Wanted { room, outcome, .. }] = wanted;
        match outcome {
            Carried::Lost => return Heard::Silence,
            Carried::Done => {}
            Carried::Refused | Carried::Missing => return Heard::NotAll,
        }
        let Some(content) = self.seal.open(key, room) else { return Heard::NotAll };
        let is_whole = if content.len() == PAGE_BYTES {
            page.copy_from_slice(content);
            true
        } else {
            page.first_chunk_mut().is_some_and(|page| lz4::unpack(content, page))
        };
        if is_whole { Heard::All } else { Heard::NotAll }
    }

    fn forget(&self, key: Key) {
        let mut stale = lock(&self.stale);
        stale.push(key);
        if stale.len() >= STALE_MAX {
            let keys = core::mem::take(&mut *stale);
            drop(stale);
            self.flush(&keys);
        }
    }

    fn flush_stale(&self) {
        let keys = core::mem::take(&mut *lock(&self.stale));
        self.flush(&keys);
    }

    /// Removes copies. A copy that can't be removed now stays until the pool is destroyed.
    fn flush(&self, keys: &[Key]) {
        for carrier in self.carriers.iter().filter(|_| !keys.is_empty()) {
            for part in keys.chunks(WRITE_PAGES_MAX) {
                carrier.flush(part);
            }
        }
    }

    fn forget_pending(&self, map: &Map) {
        let first = map.mark(Mark::PendingHandle);
        let pending = first..first.saturating_add(map.mark(Mark::PendingCount));
        let named: HashSet<u64> = (0..map.units())
            .filter_map(|unit| match map.place(unit) {
                PageLocation::Blade { handle, .. } => {
                    Some(handle).filter(|it| pending.contains(it))
                }
                _ => None,
            })
            .collect();
        pending.filter(|handle| !named.contains(handle)).for_each(|it| self.forget(blade_key(it)));
    }
}

/// Writes a page to its buffer, packed if that saves enough. Returns the length.
fn pack_into(
    page: &PageBuf,
    room: &mut [u8; SEALED_BYTES_MAX],
    packed: &mut [u8; PACKED_BYTES],
    table: &mut lz4::Table,
) -> usize {
    let length = lz4::pack(&page.0, packed, table);
    let content = if length + GAIN_BYTES <= PAGE_BYTES { &packed[..length] } else { &page.0[..] };
    room[..content.len()].copy_from_slice(content);
    content.len()
}
