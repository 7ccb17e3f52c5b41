//! Slowly reclaims what clients hold beyond their targets (the SmarTmem paper does not say how).
//!
//! A lower target by itself only makes the store refuse puts. In each interval this module takes from a client
//! above its target a sixteenth of the excess, at most 4 MiB. It drops the client's ephemeral pages first,
//! then moves pages of its disks to their files. If that is not enough, the store packs or demotes as many of
//! its coldest pages as are missing, regardless of which client owns them, because pages of persistent pools
//! are never dropped. packing.rs handles memory that runs out.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use spillway_directory::{ClientRegistry, ClientView};
use spillway_store::Scratch;
use spillway_vhost_user_blk::Disk;

/// The part of the excess reclaimed in an interval.
const PART: u64 = 16;
/// Least number of pages reclaimed in an interval.
const PAGES_MIN: u64 = 64;
/// Most pages reclaimed in an interval: 4 MiB.
const PAGES_MAX: u64 = 1024;
/// The part of an interval that one client's disks may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// The reclaiming thread. A slow disk delays neither targets nor the HTTP interface.
#[derive(Debug)]
pub struct Reclaim {
    /// None once the thread ends.
    due: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reclaim {
    /// Starts it.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(
        client_registry: Arc<ClientRegistry>,
        disks: Vec<Arc<Disk>>,
    ) -> anyhow::Result<Self> {
        let (due, waits) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("reclaim".into())
            .spawn(move || run(&waits, &client_registry, &disks))
            .context("can't start to reclaim")?;
        Ok(Self { due: Some(due), thread: Some(thread) })
    }

    /// Reports the end of an interval. If the thread is busy, it skips the interval.
    pub fn interval(&self) {
        if let Some(due) = &self.due {
            let _ = due.try_send(());
        }
    }
}

impl Drop for Reclaim {
    fn drop(&mut self) {
        self.due = None;
        if let Some(thread) = self.thread.take() {
            // A panic would have ended the daemon earlier.
            let _ = thread.join();
        }
    }
}

fn run(due: &Receiver<()>, client_registry: &ClientRegistry, disks: &[Arc<Disk>]) {
    let mut scratch = Scratch::new();
    while due.recv().is_ok() {
        disks.iter().for_each(|disk| disk.next_turn(Instant::now()));
        client_registry.store().cool();
        // Only the store's own errors: the next interval tries again.
        let clients = client_registry.clients().unwrap_or_default();
        for client in clients.iter().filter(|client| !client.importing && !client.frozen) {
            if let Err(error) = reclaim(client_registry, client, disks, &mut scratch) {
                tracing::error!(client = client.name, "can't reclaim pages: {error:#}");
            }
        }
    }
}

/// Reclaims a part of what a client holds beyond its target.
fn reclaim(
    client_registry: &ClientRegistry,
    client: &ClientView,
    disks: &[Arc<Disk>],
    scratch: &mut Scratch,
) -> anyhow::Result<()> {
    let store = client_registry.store();
    let share = share(client.statistics.debt_pages()) as usize;
    if share == 0 {
        return Ok(());
    }
    let mut its = disks.iter().filter(|disk| disk.client() == client.id).peekable();
    if its.peek().is_none() {
        store.reclaim(client.id, share, scratch)?;
        return Ok(());
    }
    let mut left = share.saturating_sub(store.evict_beyond_target(client.id, share)?);
    let deadline = Some(Instant::now() + PATIENCE);
    let mut failed = None;
    for disk in its {
        let demoted = disk.demote(left, deadline);
        left -= demoted.blocks;
        failed = failed.or(demoted.failed);
    }
    store.demote(left, scratch);
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Pages to reclaim in an interval.
fn share(debt_pages: u64) -> u64 {
    (debt_pages / PART).clamp(PAGES_MIN, PAGES_MAX).min(debt_pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_bounded() {
        for (debt, expected) in [(0, 0), (10, 10), (64, 64), (1600, 100), (1 << 30, 1024)] {
            assert_eq!(share(debt), expected, "{debt}");
        }
    }
}
