//! The disks of guests: opened at the start, and written to their files at the end.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_api::types::{DiskEmptied, DiskStatistics, DiskStatus};
use spillway_directory::ClientRegistry;
use spillway_types::PAGE_BYTES;
use spillway_vhost_user_blk::{Demoted, Disk, DiskConfig, GuestState, Kind};

use crate::config::{self, Config, Error};

/// How long a disk's guest must have been gone before the disk can be emptied. A QEMU that runs connects again within a
/// second or two of the daemon's start, as docs/disks.md configures it.
const QUIET: Duration = Duration::from_secs(10);

/// Checks that the disks' files are usable, without changing them.
///
/// # Errors
/// A file can't be used.
pub fn check(disks: &[config::Disk]) -> Result<(), Error> {
    for disk in disks {
        spillway_vhost_user_blk::check(
            disk.backing.as_deref().unwrap_or(Path::new("")),
            disk.size_bytes,
            disk.kind,
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

/// The disks and the names of their clients, for the HTTP interface.
#[derive(Debug)]
pub struct Listed(Vec<(String, Arc<Disk>)>);

impl Listed {
    /// The disks, in the order of the configuration.
    pub fn new(config: &Config, disks: &[Arc<Disk>]) -> Self {
        let clients = config.disks.iter().map(|settings| settings.client.clone());
        Self(clients.zip(disks.iter().cloned()).collect())
    }
}

impl spillway_api::Disks for Listed {
    fn list(&self) -> Vec<DiskStatus> {
        self.0.iter().map(|(client, disk)| status(client, disk)).collect()
    }

    fn empty(&self, name: &str) -> Option<Result<DiskEmptied, String>> {
        let (_, disk) = self.0.iter().find(|(_, disk)| disk.name() == name)?;
        let emptied = disk.empty(QUIET);
        Some(match emptied {
            Ok(freed_pages) => Ok(DiskEmptied { freed_pages }),
            Err(error) => Err(format!("disk '{name}' can't be emptied: {error}")),
        })
    }
}

fn status(client: &str, disk: &Disk) -> DiskStatus {
    let (state, since) = disk.guest();
    let its = disk.statistics();
    let (last_error, last_error_s) =
        disk.last_error().map(|(why, ago)| (why, ago.as_secs())).unzip();
    DiskStatus {
        name: disk.name().to_owned(),
        client: client.to_owned(),
        kind: match disk.kind() {
            Kind::Swap => "swap",
            Kind::Cache => "cache",
        }
        .to_owned(),
        bytes: disk.blocks() * PAGE_BYTES as u64,
        state: match state {
            GuestState::Absent => "no guest",
            GuestState::Connected => "connected",
            GuestState::Attached => "attached",
            GuestState::Refused(_) => "refused",
        }
        .to_owned(),
        reason: match state {
            GuestState::Refused(reason) => Some(reason),
            _ => None,
        },
        state_s: since.as_secs(),
        held_pages: disk.held_pages().ok(),
        unread_pages: disk.unread_pages(Instant::now()),
        last_error,
        last_error_s,
        statistics: DiskStatistics {
            store_read_pages: its.store_reads,
            file_read_pages: its.file_reads,
            zero_read_pages: its.zero_reads,
            store_written_pages: its.store_writes,
            file_written_pages: its.file_writes,
            refused_pages: its.refused,
            discarded_pages: its.discarded,
            demoted_pages: its.demoted,
            errors: its.errors,
            refused_guests: its.refused_guests,
        },
    }
}
