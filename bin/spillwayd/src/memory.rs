//! The store's memory and the client registry's journal: new, or kept from the previous daemon.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context;
use spillway_directory::Journal;
use spillway_store::{Backing, Dedup, DiskConfig, Kept, Store};
use spillway_types::{PAGE_BYTES, Size};

use crate::config;
use crate::kept::{self, Inherited};

/// The name of the client registry's journal in the fd store. The store's own parts are frames, index and tables, and disk and
/// sums where it has a disk.
const RECORD: &str = "directory";
/// The name of the store's disk in the fd store.
const DISK: [&str; 2] = ["disk", "sums"];

/// Whether the previous daemon's store had a disk.
pub fn has_disk(inherited: &Inherited) -> bool {
    DISK.iter().all(|wanted| inherited.kept.iter().any(|(name, _)| name == wanted))
}

/// The memory that the store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its own, bytes.
    pub own_bytes: u64,
    /// What may be lent to it beyond that, bytes.
    pub lent_bytes: u64,
}

impl Room {
    /// The sizes for a store that was opened with `before_bytes` in all, which it keeps.
    fn within(self, before_bytes: u64) -> Self {
        let own_bytes = self.own_bytes.min(before_bytes);
        Self { own_bytes, lent_bytes: self.lent_bytes.min(before_bytes - own_bytes) }
    }
}

/// What outlives the daemon.
pub struct Memory {
    pub store: Store,
    pub journal: Journal,
    pub room: Room,
}

impl Memory {
    /// Reopens the kept store or creates a new one, and passes it to the fd store.
    ///
    /// # Errors
    /// A new store can't be opened.
    pub fn take_up(
        settings: &config::Store,
        room: Room,
        kept: Vec<(String, OwnedFd)>,
    ) -> anyhow::Result<Self> {
        if !kept.is_empty() {
            let names: Vec<_> = kept.iter().map(|(name, _)| name.clone()).collect();
            match Self::reopen(settings, room, kept) {
                Ok(memory) => return Ok(memory),
                Err(error) => {
                    tracing::error!("the store of the previous daemon is lost: {error:#}");
                    names.iter().try_for_each(|name| kept::forget(name))?;
                }
            }
        }
        let most_bytes = room.own_bytes + room.lent_bytes;
        let store = Store::open(store_config(settings, most_bytes));
        let store = store.context("can't open the store")?;
        store.set_capacity(room.own_bytes, 0);
        if settings.disk.is_some() && !store.disk_is_direct() {
            tracing::warn!(
                "store.disk's file system has no direct I/O: its pages also take page cache"
            );
        }
        let journal = Journal::create(most_bytes).context("can't create the record of clients")?;
        let memory = Self { store, journal, room };
        memory.keep()?;
        Ok(memory)
    }

    fn reopen(
        settings: &config::Store,
        wanted: Room,
        mut kept: Vec<(String, OwnedFd)>,
    ) -> anyhow::Result<Self> {
        let mut take = |wanted: &str| {
            let at = kept.iter().position(|(name, _)| name == wanted);
            let at = at.with_context(|| format!("'{wanted}' was not kept"))?;
            anyhow::Ok(kept.swap_remove(at).1)
        };
        let journal = Journal::reopen(take(RECORD)?)?;
        let before_bytes = journal.capacity_bytes();
        let room = wanted.within(before_bytes);
        if room != wanted {
            tracing::warn!(
                "store.capacity is {} and sections.lend {} as long as the store is kept, which can't become larger: stop the \
                 daemon to have {} and {}",
                Size(room.own_bytes),
                Size(room.lent_bytes),
                Size(wanted.own_bytes),
                Size(wanted.lent_bytes)
            );
        }
        let memory = [take("frames")?, take("index")?, take("tables")?];
        let [file, sums] = DISK.map(take);
        let disk = file.and_then(|file| Ok([file, sums?])).ok();
        let had_disk = disk.is_some();
        let store = Store::reopen(store_config(settings, before_bytes), Kept { memory, disk })?;
        store.set_capacity(room.own_bytes, 0);
        let memory = Self { store, journal, room };
        if had_disk {
            memory.warn_of_other_disk(settings);
        } else {
            // Only one of the two may exist, if a daemon was killed while it passed them on.
            DISK.iter().try_for_each(|name| kept::forget(name))?;
            memory.keep_disk()?;
        }
        Ok(memory)
    }

    /// The disk stays as it was, like the capacity.
    fn warn_of_other_disk(&self, settings: &config::Store) {
        let counters = self.store.disk_counters().unwrap_or_default();
        let bytes = counters.capacity_pages * PAGE_BYTES as u64;
        if settings.disk.is_none() {
            tracing::warn!(
                "the store's disk stays as long as the store is kept: stop the daemon to remove it"
            );
        } else if bytes < settings.disk_capacity_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64 {
            tracing::warn!(
                "store.disk_capacity stays {} as long as the store is kept: stop the daemon to change it to {}",
                Size(bytes),
                Size(settings.disk_capacity_bytes)
            );
        }
        let file = self.store.kept_disk_descriptors().map(|[(_, file), _]| file);
        if let (Some(dir), Some(file)) = (&settings.disk, file)
            && let (Ok(dir), Ok(file)) = (rustix::fs::stat(dir), rustix::fs::fstat(file))
            && dir.st_dev != file.st_dev
        {
            tracing::warn!(
                "store.disk stays on its file system as long as the store is kept: stop the daemon to change it"
            );
        }
    }

    fn keep_disk(&self) -> anyhow::Result<()> {
        kept::keep(self.store.kept_disk_descriptors().into_iter().flatten())
    }

    fn keep(&self) -> anyhow::Result<()> {
        let record = (RECORD, self.journal.descriptor());
        let store = self.store.kept_descriptors().into_iter().flatten();
        kept::keep(store.chain([record]))?;
        self.keep_disk()
    }
}

fn store_config(settings: &config::Store, capacity_bytes: u64) -> spillway_store::Config {
    let disk = settings.disk.clone().map(|dir| DiskConfig {
        deadline: Duration::from_millis(settings.disk_timeout_ms),
        ..DiskConfig::new(dir, settings.disk_capacity_bytes)
    });
    let dedup = if settings.dedup { Dedup::PerClient } else { Dedup::Off };
    spillway_store::Config {
        capacity_bytes,
        backing: Backing::Memfd,
        compress: settings.compress,
        makes_room: true,
        dedup,
        disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_kept_becomes_no_larger() {
        let wanted = Room { own_bytes: 10, lent_bytes: 6 };
        let within = |before| {
            let room = wanted.within(before);
            (room.own_bytes, room.lent_bytes)
        };
        assert_eq!(within(16), (10, 6));
        assert_eq!(within(20), (10, 6), "it may become smaller");
        assert_eq!(within(12), (10, 2));
        assert_eq!(within(10), (10, 0));
        assert_eq!(within(7), (7, 0));
    }

    /// The daemon's store, opened by what the one before left.
    fn taken_up(kept: &Memory, room: Room) -> Memory {
        let descriptors = kept.store.kept_descriptors().into_iter().flatten();
        let descriptors = descriptors.chain([(RECORD, kept.journal.descriptor())]);
        let own = |(name, descriptor): (&str, std::os::fd::BorrowedFd<'_>)| {
            (name.to_owned(), descriptor.try_clone_to_owned().unwrap())
        };
        Memory::take_up(&SETTINGS, room, descriptors.map(own).collect()).unwrap()
    }

    const SETTINGS: config::Store = config::Store {
        capacity: config::Capacity::Percent(25),
        compress: false,
        dedup: false,
        disk: None,
        disk_capacity_bytes: 0,
        disk_timeout_ms: 1000,
    };

    #[test]
    fn a_store_has_its_own_capacity_until_it_is_lent_more_also_when_it_is_taken_up() {
        let room = Room { own_bytes: 32 << 20, lent_bytes: 32 << 20 };
        let first = Memory::take_up(&SETTINGS, room, Vec::new()).unwrap();
        assert_eq!(first.store.capacity_bytes(), room.own_bytes);
        first.store.set_capacity(room.own_bytes, room.lent_bytes);
        assert_eq!(first.store.capacity_bytes(), 64 << 20, "there is room for it");
        let second = taken_up(&first, room);
        assert_eq!((second.room, second.store.capacity_bytes()), (room, room.own_bytes));
        // The configuration says less now, or more than there is.
        let less = Room { own_bytes: 16 << 20, lent_bytes: 0 };
        let third = taken_up(&first, less);
        assert_eq!((third.room, third.store.capacity_bytes()), (less, less.own_bytes));
        let fourth = taken_up(&first, Room { own_bytes: 128 << 20, lent_bytes: 1 << 20 });
        assert_eq!(fourth.store.capacity_bytes(), 64 << 20);
        assert_eq!(fourth.room.lent_bytes, 0);
    }
}
