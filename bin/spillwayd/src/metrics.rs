//! One sample of all metrics.

use std::sync::Arc;
use std::time::Instant;

use spillway_directory::Directory;
use spillway_metrics::{ClientSample, DiskSample, Sample, StoreSample};
use spillway_vhost_user_blk::Disk;

/// What does not change while the daemon runs.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub capacity_bytes: u64,
    pub memory_locked: bool,
    pub started: Instant,
}

/// The metrics of now, as text.
pub fn text(directory: &Arc<Directory>, disks: &[Arc<Disk>], facts: Facts) -> String {
    let store = directory.store();
    let store = StoreSample {
        capacity_bytes: facts.capacity_bytes,
        memory_bytes: store.memory_bytes(),
        free_frame_bytes: store.free_frame_bytes(),
        disk_bytes: store.disk_bytes(),
        same_filled_pages: store.same_filled_pages(),
        compressed_pages: store.compressed_pages(),
        pools: directory.pools().map_or(0, |pools| pools.len() as u64),
        blocks: directory.blocks().len() as u64,
        memory_locked: facts.memory_locked,
        restarts: directory.restarts(),
        uptime_seconds: facts.started.elapsed().as_secs(),
    };
    let clients = directory.clients().unwrap_or_default().into_iter().map(|client| ClientSample {
        name: client.name,
        statistics: client.statistics,
        connections: client.connections,
    });
    let programs = directory.programs().into_iter().map(|program| ClientSample {
        name: program.name,
        statistics: program.statistics,
        connections: program.connections,
    });
    let disks = disks.iter().map(|disk| {
        let its = disk.statistics();
        DiskSample {
            name: disk.name().to_owned(),
            store_reads: its.store_reads,
            file_reads: its.file_reads,
            zero_reads: its.zero_reads,
            store_writes: its.store_writes,
            file_writes: its.file_writes,
            refused: its.refused,
            discarded: its.discarded,
            demoted: its.demoted,
            errors: its.errors,
        }
    });
    spillway_metrics::render(&Sample {
        store,
        clients: clients.collect(),
        programs: programs.collect(),
        disks: disks.collect(),
    })
}
