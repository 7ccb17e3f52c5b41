//! The store's memory and the directory's record: new, or those of the daemon before.

use std::os::fd::OwnedFd;

use anyhow::Context;
use spillway_directory::Journal;
use spillway_store::{Backing, Dedup, DiskConfig, Store};
use spillway_types::Size;

use crate::config;
use crate::kept;

/// What the record of the directory is kept as. The store's own parts are frames, index and tables.
const RECORD: &str = "directory";

/// What outlives the daemon.
pub struct Memory {
    pub store: Store,
    pub journal: Journal,
}

impl Memory {
    /// Takes up what was kept, or begins anew; and has it kept from now on.
    ///
    /// # Errors
    /// A new store can't be opened.
    pub fn take_up(
        settings: &config::Store,
        capacity_bytes: u64,
        kept: Vec<(String, OwnedFd)>,
    ) -> anyhow::Result<Self> {
        if !kept.is_empty() {
            let names: Vec<_> = kept.iter().map(|(name, _)| name.clone()).collect();
            match Self::reopen(settings, capacity_bytes, kept) {
                Ok(memory) => return Ok(memory),
                Err(error) => {
                    tracing::error!("the store of the daemon before is lost: {error:#}");
                    names.iter().try_for_each(|name| kept::forget(name))?;
                }
            }
        }
        let store = Store::open(store_config(settings, capacity_bytes));
        let store = store.context("can't open the store")?;
        let memory = Self { store, journal: Journal::create(capacity_bytes)? };
        memory.keep()?;
        Ok(memory)
    }

    fn reopen(
        settings: &config::Store,
        capacity_bytes: u64,
        mut kept: Vec<(String, OwnedFd)>,
    ) -> anyhow::Result<Self> {
        let mut take = |wanted: &str| {
            let at = kept.iter().position(|(name, _)| name == wanted);
            let at = at.with_context(|| format!("'{wanted}' was not kept"))?;
            anyhow::Ok(kept.swap_remove(at).1)
        };
        let journal = Journal::reopen(take(RECORD)?)?;
        let before_bytes = journal.capacity_bytes();
        if before_bytes != capacity_bytes {
            tracing::warn!(
                "store.capacity stays {} as long as the store is kept: stop the daemon to have {}",
                Size(before_bytes),
                Size(capacity_bytes)
            );
        }
        let kept = [take("frames")?, take("index")?, take("tables")?];
        let store = Store::reopen(store_config(settings, before_bytes), kept)?;
        Ok(Self { store, journal })
    }

    fn keep(&self) -> anyhow::Result<()> {
        let record = (RECORD, self.journal.descriptor());
        let store = self.store.kept_descriptors().into_iter().flatten();
        kept::keep(store.chain([record]))
    }
}

fn store_config(settings: &config::Store, capacity_bytes: u64) -> spillway_store::Config {
    let disk = settings.disk.clone().map(|dir| DiskConfig::new(dir, settings.disk_capacity_bytes));
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
