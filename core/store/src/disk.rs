//! The disk of a kept store: writes to it and reads from it.

use spillway_tiers::sync::Ordering;
use spillway_tiers::{Disk, DiskCounters, DiskRead, KeptFile, WRITE_PAGES_MAX};
use spillway_types::{Key, PAGE_BYTES, PoolId};

use crate::error::Error;
use crate::list::List;
use crate::position::HandlePosition;
use crate::put::lane;
use crate::scratch::Scratch;
use crate::slot::{Slot, ValueLocation};
use crate::store::Store;

/// Reads of a slot whose checksum does not match while the index still names it.
const TRIES: usize = 3;

/// Reads of one page that did not match the recorded checksum.
#[derive(Debug, Default)]
pub(crate) struct Misfits {
    last_sum: Option<u64>,
    count: usize,
}

impl Misfits {
    /// Whether the page may have been moved or rewritten during the read, and must be looked up
    /// again. If the index repeatedly has the same checksum, it was not.
    pub(crate) fn may_be_a_race(&mut self, sum: u64) -> bool {
        self.count = if self.last_sum == Some(sum) { self.count + 1 } else { 1 };
        self.last_sum = Some(sum);
        self.count < TRIES
    }
}

impl Store {
    /// The disk of a store in memfds.
    pub(crate) fn kept_disk(&self) -> Option<&KeptFile> {
        self.files.as_ref().and_then(Disk::kept)
    }

    /// The counters of the file tier of a store in memfds; none if there is none.
    pub fn disk_counters(&self) -> Option<DiskCounters> {
        let kept = self.kept_disk()?;
        let corrupt_pages = self.corrupt_pages.load(Ordering::Relaxed);
        Some(DiskCounters { corrupt_pages, ..kept.counters() })
    }

    /// Whether the disk of a store in memfds uses direct I/O.
    pub fn disk_is_direct(&self) -> bool {
        self.kept_disk().is_some_and(KeptFile::is_direct)
    }

    /// Checks whether a failed disk works again, without waiting for it. Call it periodically.
    pub fn try_disk_again(&self) {
        if let Some(disk) = self.kept_disk() {
            disk.try_again(self.budget());
        }
    }

    /// The disk returned other bytes than were written.
    pub(crate) fn corrupt_on_disk(&self) -> Error {
        self.corrupt_pages.fetch_add(1, Ordering::Relaxed);
        if let Some(disk) = self.kept_disk() {
            disk.note_corrupt();
        }
        Error::Corrupt
    }

    /// Makes room for a put at the pace of the disk: puts that exceed the disk's rate wait for it.
    /// Returns whether there may be room now. False if the disk is full or fails.
    pub(crate) fn make_room_by_disk(&self) -> bool {
        let Some(disk) = self.kept_disk().filter(|disk| disk.takes()) else { return false };
        let (turns, deadline) = (disk.turns(), disk.deadline());
        let before = turns.ended();
        // Enough other tasks are writing, and one of them has just ended.
        let Some(turn) = turns.begin(deadline) else { return true };
        let mut scratch = Scratch::new();
        let mut moved = self.page_out(WRITE_PAGES_MAX, &mut scratch);
        if moved == 0 {
            // Pages that could be packed, if there were memory for it.
            moved = self.page_out_of(&[List::Frames], WRITE_PAGES_MAX, &mut scratch);
        }
        drop(turn);
        // Or other tasks hold all candidates, and are about to free or release them, or have just
        // done so.
        moved != 0 || turns.wait_for_end(before, deadline)
    }

    /// Moves a page that was read from the kept disk back to memory while much is free, so that the
    /// next get finds it there. It stays if its slot has changed meanwhile.
    pub(crate) fn bring_back(
        &self,
        pool: PoolId,
        key: Key,
        read: &DiskRead<'_>,
        page: &[u8; PAGE_BYTES],
    ) {
        let DiskRead::Kept { at: (file, disk_slot), sum, file: disk } = read else { return };
        if !self.has_much_room() {
            return;
        }
        let Some(access) = self.access(pool) else { return };
        let Some(frame) = self.arena.store(lane(), page) else { return };
        let at = HandlePosition::new(access.pool, key, self.seed);
        let new = ValueLocation::Raw { frame, length: PAGE_BYTES as u16, incompressible: false };
        let old = ValueLocation::Disk { file: *file, slot: *disk_slot };
        let mut index = self.shards[at.shard].lock();
        let found = self.find(&index, &at).filter(|(_, slot)| {
            slot.place() == old && disk.sum(*file, *disk_slot) == *sum && self.pools.is_live(pool)
        });
        let Some((leaf, slot)) = found else {
            drop(index);
            self.arena.release(frame);
            return;
        };
        let listed = self.list(Slot::new(new, slot.owner()), at.shard, leaf, at.index, false);
        let kept = index.set(leaf, at.index, listed, self.budget());
        debug_assert!(kept, "changing a used slot takes no memory");
        drop(index);
        self.free_place(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClientConfig, Config, DiskConfig};
    use crate::get::PinnedValue;
    use spillway_tiers::Backing;
    use spillway_tiers::PageBuf;
    use spillway_types::{Get, PoolSpec, Put};
    use std::time::{Duration, Instant};

    const KEY: Key = Key::new(1, 1);

    /// Has the one page of a store go to the first slot of its disk.
    fn to_first_slot(store: &Store, pool: PoolId, page: &[u8; PAGE_BYTES]) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            assert_eq!(store.put(pool, KEY, page), Put::Stored);
            assert_eq!(store.page_out(1, &mut Scratch::new()), 1);
            match store.hold(pool, KEY, PAGE_BYTES, false).unwrap() {
                PinnedValue::Disk(DiskRead::Kept { at: (0, 0), .. }) => return,
                // The slot's group is still to be punched out.
                _ => assert!(Instant::now() < until, "the slot is not free again"),
            }
        }
    }

    /// A store with one page, which lies on disk, and another page.
    fn one_page_on_disk() -> (Store, PoolId, [[u8; PAGE_BYTES]; 2]) {
        let own = std::env::current_exe().unwrap();
        let disk = Some(DiskConfig::new(own.parent().unwrap().to_owned(), 1 << 20));
        let config =
            Config { backing: Backing::Memfd, compress: false, disk, ..Config::embedded(4 << 20) };
        let store = Store::open(config).unwrap();
        let client = store.add_client(ClientConfig::default()).unwrap();
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
        let pages = [1, 2].map(|byte| core::array::from_fn(|at| byte ^ (at / 7) as u8));
        to_first_slot(&store, pool, &pages[0]);
        (store, pool, pages)
    }

    #[test]
    fn a_page_that_was_read_late_does_not_win_over_a_newer_one_at_its_place() {
        let (store, pool, [_, new]) = one_page_on_disk();
        let Ok(PinnedValue::Disk(read)) = store.hold(pool, KEY, PAGE_BYTES, false) else {
            panic!("it is on disk")
        };
        let mut scratch = PageBuf::ZERO;
        assert!(read.read(&mut scratch).unwrap());
        to_first_slot(&store, pool, &new);
        store.bring_back(pool, KEY, &read, &scratch.0);
        let mut value = [0; PAGE_BYTES];
        assert_eq!(store.get(pool, KEY, &mut value).unwrap(), Get::Hit(PAGE_BYTES));
        assert_eq!(value, new);
    }

    #[test]
    fn a_page_that_was_taken_late_leaves_a_newer_one_at_its_place() {
        let (store, pool, [old, new]) = one_page_on_disk();
        let (mut shown, mut scratch) = (0, PageBuf::ZERO);
        let got = store.take(pool, KEY, PAGE_BYTES, &mut scratch, |at, part| {
            assert_eq!(part, if shown == 0 { &old[at..] } else { &new[at..] });
            if shown == 0 {
                to_first_slot(&store, pool, &new);
            }
            shown += 1;
        });
        assert_eq!((got.unwrap(), shown), (Get::Hit(PAGE_BYTES), 2));
        assert!(!store.exists(pool, KEY));
    }

    #[test]
    fn a_page_that_changes_while_it_goes_to_the_disk_leaves_no_copy_there() {
        let (store, pool, [old, new]) = one_page_on_disk();
        for changes in [false, true] {
            assert_eq!(store.put(pool, KEY, &old), Put::Stored);
            assert_eq!(store.disk_bytes(), 0);
            let candidate = store.candidate(&[List::Frames]).unwrap();
            let mut places = [None; WRITE_PAGES_MAX];
            let disk = store.files.as_ref().unwrap();
            assert!(disk.write(&[&old], store.budget(), &mut places));
            if changes {
                assert_eq!(store.put(pool, KEY, &new), Put::Stored);
            } else {
                assert!(store.flush(pool, KEY));
            }
            let place = places[0].map(|(file, slot)| ValueLocation::Disk { file, slot }.into());
            store.settle(candidate, place);
            assert_eq!(store.disk_bytes(), 0);
            let mut value = [0; PAGE_BYTES];
            let got = store.get(pool, KEY, &mut value).unwrap();
            let expected = if changes { Get::Hit(PAGE_BYTES) } else { Get::Miss };
            assert_eq!((got, value == new), (expected, changes));
        }
    }
}
