//! The disks of guests: opened at the start, and written to their files at the end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spillway_directory::ClientRegistry;
use spillway_vhost_user_blk::{Demoted, Disk, DiskConfig};

use crate::config::{self, Config, Error};

/// Checks that the disks' files are usable, without changing them.
///
/// # Errors
/// A file can't be used.
pub fn check(disks: &[config::Disk]) -> Result<(), Error> {
    for disk in disks {
        spillway_vhost_user_blk::check(
            disk.backing.as_deref().unwrap_or(Path::new("")),
            disk.size_bytes,
        )
        .map_err(|error| Error::new(format!("disk '{}': {error}", disk.name)))?;
    }
    Ok(())
}

/// Opens the configured disks, and registers them in the client registry.
///
/// # Errors
/// A client does not exist, or a file can't be used.
pub fn open(config: &Config, client_registry: &ClientRegistry) -> anyhow::Result<Vec<Arc<Disk>>> {
    let mut disks = Vec::new();
    for settings in &config.disks {
        let name = &settings.name;
        let client = client_registry.client(&settings.client)?.id;
        let disk = Disk::open(
            Arc::clone(client_registry.store()),
            DiskConfig {
                name: name.clone(),
                kind: settings.kind,
                client,
                bytes: settings.size_bytes,
                backing: settings.backing.clone().unwrap_or_default(),
                latency: Duration::from_micros(settings.disk_latency_us),
            },
        )
        .map_err(|error| Error::new(format!("disk '{name}': {error}")))?;
        client_registry.attach_disk(name, client, disk.pool());
        disks.push(Arc::new(disk));
    }
    Ok(disks)
}

/// Moves the swap disks' pages from the store to their files. The store ends with the daemon, but
/// running guests will read these pages from the next daemon.
pub fn drain(disks: &[Arc<Disk>]) {
    for disk in disks {
        let Demoted { blocks, failed } = disk.drain();
        if let Some(error) = failed {
            tracing::error!(disk = disk.name(), "pages are lost with the store: {error}");
        }
        if blocks > 0 {
            tracing::info!(disk = disk.name(), blocks, "moved to the backing file");
        }
    }
}
